#include "grammar/string_formats.h"

#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>

namespace deepinfer::grammar {
namespace {

const std::unordered_map<std::string_view, std::string>& patterns() {
  static const auto map = [] {
    std::unordered_map<std::string_view, std::string> out;
    // Days of each month, and 29 February of leap years, also 1900 and 2000.
    const std::string date =
        "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
        "|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)";
    const std::string time = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]+)?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
    const std::string octet = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    const std::string ipv4 = octet + "(\\." + octet + "){3}";
    const std::string h = "[0-9a-fA-F]{1,4}";
    std::string ipv6;
    const std::string tail = "(" + h + ":" + h + "|" + ipv4 + ")";
    ipv6 = "(" + h + ":){6}" + tail;
    // "::" stands for at least one group: n groups before it leave at most 7 - n behind it.
    for (int n = 0; n <= 7; ++n) {
      const std::string front = n == 0 ? "" : h + "(:" + h + "){" + std::to_string(n - 1) + "}";
      const int behind = 7 - n;
      std::string back;
      if (behind >= 1) back += "|" + h + "(:" + h + "){0," + std::to_string(behind - 1) + "}";
      if (behind >= 2) back += "|(" + h + ":){0," + std::to_string(behind - 2) + "}" + ipv4;
      ipv6 += "|" + front + "::(" + back + ")";
    }
    const std::string label = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
    const std::string hostname = label + "(\\." + label + ")*";
    const std::string atom = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+";
    const std::string pchar = "([a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})";
    const std::string query = "(\\?(" + pchar + "|[/?])*)?(#(" + pchar + "|[/?])*)?";
    const std::string host = "(\\[(" + ipv6 + ")\\]|([a-zA-Z0-9._~!$&'()*+,;=-]|%[0-9a-fA-F]{2})*)";
    const std::string authority = "(([a-zA-Z0-9._~!$&'()*+,;=:-]|%[0-9a-fA-F]{2})*@)?" + host + "(:[0-9]*)?";
    const std::string after = "//" + authority + "(/" + pchar + "*)*|/(" + pchar + "+(/" + pchar + "*)*)?";
    const std::string rootless = pchar + "+(/" + pchar + "*)*";
    const std::string uri = "[a-zA-Z][a-zA-Z0-9+.-]*:(" + after + "|" + rootless + "|)" + query;
    const std::string nocolon = "([a-zA-Z0-9._~!$&'()*+,;=@-]|%[0-9a-fA-F]{2})";
    const std::string duration_time = "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)";
    out["date"] = date;
    out["time"] = time;
    out["date-time"] = date + "[Tt]" + time;
    out["duration"] =
        "P([0-9]+W|([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)(" + duration_time + ")?|" + duration_time + ")";
    out["email"] = atom + "(\\." + atom + ")*@" + hostname;
    out["hostname"] = hostname;
    out["ipv4"] = ipv4;
    out["ipv6"] = ipv6;
    out["uuid"] = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}";
    out["uri"] = uri;
    out["uri-reference"] = uri + "|(" + after + "|" + nocolon + "+(/" + pchar + "*)*|)" + query;
    out["json-pointer"] = "(/([^/~]|~[01])*)*";
    out["relative-json-pointer"] = "(0|[1-9][0-9]*)(#|(/([^/~]|~[01])*)*)";
    return out;
  }();
  return map;
}

}  // namespace

std::optional<std::string_view> format_pattern(std::string_view format) {
  const auto at = patterns().find(format);
  if (at == patterns().end()) return std::nullopt;
  return at->second;
}

bool is_unsupported_format(std::string_view format) {
  static constexpr std::array<std::string_view, 6> kNames = {"idn-email",     "idn-hostname", "iri",
                                                             "iri-reference", "uri-template", "regex"};
  return std::find(kNames.begin(), kNames.end(), format) != kNames.end();
}

}  // namespace deepinfer::grammar
