// What is at / of a program that was built without the web app.
#include "server/web_files.h"

namespace deepinfer::server {
namespace {

constexpr std::string_view kPage = R"(<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>DeepInfer</title></head>
<body>
<h1>DeepInfer</h1>
<p>The server runs. Its dashboard is not in this build: it needs Node.js 18 or later, with npm, when the program is built.</p>
<p>On Debian: <code>apt-get install npm</code>, then <code>./dev build</code>, and start the server again.</p>
<ul>
<li><a href="metrics">metrics</a></li>
<li><a href="v1/models">models</a></li>
<li><a href="version">version</a></li>
</ul>
</body>
</html>
)";

constexpr WebFile kFiles[] = {{"/", "text/html; charset=utf-8", "W/\"absent-1\"", kPage, {}}};

}  // namespace

std::span<const WebFile> web_files() { return kFiles; }
bool web_app_built() { return false; }

}  // namespace deepinfer::server
