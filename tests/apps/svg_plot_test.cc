#include "svg_plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "apps/xml_check.h"

namespace deepinfer::bench {
namespace {

using testing::xml_defect;

Plot plot(std::vector<PlotLine> lines) { return {"Title", "", "x", "y", std::move(lines)}; }

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(NiceTicks, AreRoundAndCover) {
  EXPECT_EQ(nice_ticks(0, 10, 6), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(nice_ticks(0, 97, 6), (std::vector<double>{0, 20, 40, 60, 80, 100}));
  EXPECT_EQ(nice_ticks(-3, 3, 4), (std::vector<double>{-4, -2, 0, 2, 4}));
  EXPECT_EQ(nice_ticks(5, 5, 6), (std::vector<double>{5}));
  EXPECT_EQ(nice_ticks(-1e308, 1.7e308, 6).size(), 2u);
  EXPECT_EQ(nice_ticks(0, 5e-324, 6).size(), 2u);
  for (const double high : {1e-9, 0.003, 0.7, 1.0, 3.3, 12345.0, 9.9e15}) {
    const std::vector<double> ticks = nice_ticks(0, high, 6);
    EXPECT_EQ(ticks.front(), 0) << high;
    EXPECT_GE(ticks.back(), high * (1 - 1e-6)) << high;
    EXPECT_GE(ticks.size(), 3u) << high;
    EXPECT_LE(ticks.size(), 8u) << high;
  }
}

TEST(Doubles, Values) {
  EXPECT_TRUE(doubles({1, 2, 4}));
  EXPECT_TRUE(doubles({64, 1, 4, 16, 4}));
  EXPECT_FALSE(doubles({1, 2}));
  EXPECT_FALSE(doubles({1, 2, 3}));
  EXPECT_FALSE(doubles({0, 1, 2, 4}));
  EXPECT_FALSE(doubles({-1, 1, 2}));
  EXPECT_FALSE(doubles({}));
}

TEST(RenderSvg, IsWellFormed) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const std::vector<std::vector<Plot>> cases = {
      {},
      {plot({})},
      {plot({{"empty", {}}})},
      {plot({{"one", {{3, 5}}}})},
      {plot({{"zero", {{0, 0}}}})},
      {plot({{"nan", {{nan, 1}, {1, nan}, {inf, 2}, {2, -inf}}}})},
      {plot({{"gap", {{1, 1}, {2, nan}, {3, 2}, {4, 1}}}})},
      {plot({{"log", {{1, 1}, {4, 2}, {16, 3}, {64, 4}}, 1, true}, {"b", {{1, 7}}, 2}})},
      {plot({{"negative", {{-5, -1}, {5, -2}}}})},
      {plot({{"huge", {{1, 1e300}, {2, 1e-300}}}})},
      {plot({{"same", {{1, 2}, {1, 2}}}}), plot({{"second", {{1, 2}, {2, 2}}}})},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string svg = render_svg(cases[i]);
    EXPECT_EQ(xml_defect(svg), "") << i << "\n" << svg;
    EXPECT_EQ(svg.find("nan\""), std::string::npos) << svg;
    EXPECT_EQ(svg.find("inf\""), std::string::npos) << svg;
    EXPECT_NE(svg.find("<title id=\"plot-title\">"), std::string::npos);
    EXPECT_NE(svg.find("<desc id=\"plot-desc\">"), std::string::npos);
    EXPECT_NE(svg.find("prefers-color-scheme: dark"), std::string::npos);
    EXPECT_EQ(count(svg, "http"), 1u) << "only the name space";
  }
  EXPECT_NE(render_svg({plot({})}).find("no data"), std::string::npos);
}

TEST(RenderSvg, EscapesLabels) {
  Plot p = plot({{"a<b>&\"c'\x01", {{1, 1}}}});
  p.title = "</title><script>";
  p.x_label = "<x>\xff\xc3(";
  p.description = "]]>&amp;";
  const std::string svg = render_svg({p}, "a\"b");
  EXPECT_EQ(xml_defect(svg), "") << svg;
  EXPECT_EQ(svg.find("<script"), std::string::npos);
  EXPECT_EQ(svg.find('\xff'), std::string::npos);
  EXPECT_NE(svg.find("a&lt;b&gt;&amp;&quot;c&#39;\xef\xbf\xbd"), std::string::npos) << svg;
  EXPECT_NE(svg.find("]]&gt;&amp;amp;"), std::string::npos);
}

TEST(RenderSvg, LinesAndGaps) {
  const double nan = std::nan("");
  const std::string svg = render_svg({plot({{"a", {{1, 1}, {2, nan}, {3, 2}, {4, 1}}, 0, true}})});
  EXPECT_EQ(count(svg, "<circle"), 3u);
  const size_t at = svg.find("class=\"line s0 dashed\" d=\"");
  ASSERT_NE(at, std::string::npos) << svg;
  const std::string path = svg.substr(at, svg.find("/>", at) - at);
  EXPECT_EQ(count(path, "M"), 2u) << path;
  EXPECT_EQ(count(path, "L"), 1u) << path;
}

TEST(RenderSvg, LogarithmicAxisSpreadsDoublings) {
  const std::string svg = render_svg({plot({{"a", {{1, 1}, {4, 1}, {16, 1}}}})});
  // Left, middle and right of the plot's 76 to 736.
  for (const char* at : {"cx=\"76.0\"", "cx=\"406.0\"", "cx=\"736.0\""}) EXPECT_NE(svg.find(at), std::string::npos) << at;
  for (const char* tick : {">1<", ">4<", ">16<"}) EXPECT_NE(svg.find(tick), std::string::npos) << tick;
}

TEST(XmlCheck, FindsDefects) {
  for (const char* bad : {"", "text", "<a>", "<a></b>", "<a><b></a></b>", "<a x=1/>", "<a x=\"<\"/>", "<a>&nope;</a>", "<a/><b/>",
                          "<a x=\"1\" x=\"2\"/>", "<a>\x01</a>", "<a>]]></a>"}) {
    EXPECT_NE(xml_defect(bad), "") << bad;
  }
  EXPECT_EQ(xml_defect("<a x=\"1\"><b/>t &amp; &#39;<c y=\"2\">u</c></a>\n"), "");
}

}  // namespace
}  // namespace deepinfer::bench
