#include "serve/serve_report.h"

#include <gtest/gtest.h>

#include <cmath>

#include "apps/xml_check.h"

namespace deepinfer::bench {
namespace {

using Json = nlohmann::ordered_json;

Json result(double rate, double concurrency) {
  return {{"duration", 10},
          {"completed", 50},
          {"failed", 0},
          {"request_rate", std::isfinite(rate) ? Json(rate) : Json("inf")},
          {"max_concurrency", concurrency > 0 ? Json(concurrency) : Json(nullptr)},
          {"request_throughput", 5},
          {"output_throughput", 50},
          {"request_goodput", nullptr},
          {"mean_ttft_ms", 12},
          {"median_ttft_ms", 11.5},
          {"p99_ttft_ms", 20},
          {"mean_tpot_ms", 10},
          {"median_tpot_ms", 9},
          {"p99_tpot_ms", 15}};
}

ServePoint point(const std::string& label, double rate, double concurrency) {
  auto out = read_point(result(rate, concurrency), label);
  EXPECT_TRUE(out.has_value());
  return *out;
}

TEST(ServeReport, ReadsResults) {
  const ServePoint p = point("x", HUGE_VAL, 4);
  EXPECT_TRUE(std::isnan(p.rate) && std::isnan(p.goodput));
  EXPECT_EQ(p.concurrency, 4);
  EXPECT_EQ(p.user_throughput, 100);
  Json clients = result(2, 0);
  clients["num_clients"] = 6;
  EXPECT_EQ(read_point(clients, "x")->concurrency, 6);

  const std::string line = result(1, 0).dump();
  for (const std::string& text : {line, line + "\n\r\n" + line + "\n", result(1, 0).dump(2)})
    EXPECT_TRUE(read_points(text, "x").has_value()) << text;
  EXPECT_EQ(read_points(line + "\n" + line, "x")->size(), 2u);
  const std::pair<std::string, const char*> wrong[] = {{"", "has no result"},
                                                       {"\n\n", "has no result"},
                                                       {line + "\n{oops", "line 2: not a JSON object"},
                                                       {"[1]", "line 1: not a JSON"},
                                                       {"{}", "\"duration\" is missing"},
                                                       {R"({"duration":"x"})", "\"duration\" is missing or no number"}};
  for (const auto& [text, error] : wrong) {
    const auto points = read_points(text, "x");
    ASSERT_FALSE(points.has_value()) << text;
    EXPECT_NE(points.error().message().find(error), std::string::npos) << points.error().message();
  }
}

TEST(ServeReport, ASeriesGoesUpwards) {
  // As a search for the knee tries them.
  const auto plots = serve_plots({point("s", 8, 0), point("s", 16, 0), point("s", 11, 0), point("s", HUGE_VAL, 0)});
  ASSERT_EQ(plots.size(), 4u);
  ASSERT_EQ(plots[1].lines.size(), 2u);
  std::vector<double> rates;
  for (const PlotPoint& p : plots[1].lines[0].points) {
    if (std::isfinite(p.x)) rates.push_back(p.x);
  }
  EXPECT_EQ(rates, (std::vector<double>{8, 11, 16}));
  EXPECT_EQ(plots[3].lines.size(), 1u) << "nothing is said about good ones";
}

TEST(ServeReport, RatesAtSeveralLimitsAreLinesOfTheirOwn) {
  const auto plots = serve_plots({point("s", 1, 4), point("s", 2, 4), point("s", 1, 8), point("s", 2, 8), point("t", 1, 4)});
  ASSERT_EQ(plots[0].lines.size(), 3u);
  EXPECT_EQ(plots[0].lines[0].label, "s, concurrency 4");
  EXPECT_EQ(plots[0].lines[0].points.size(), 2u);
  EXPECT_EQ(serve_plots({point("s", HUGE_VAL, 4), point("s", HUGE_VAL, 8)})[0].lines.size(), 1u);
}

TEST(ServeReport, PageIsWellFormedAndLoadsNothing) {
  const std::string page =
      serve_html({point("<ours> & theirs", 1, 0), point("<ours> & theirs", 2, 0), point("peer\x01\xff", 2, 4)});
  EXPECT_EQ(testing::xml_defect(page), "");
  for (const char* bad : {"<ours>", "src=", "href=", "nan"}) EXPECT_EQ(page.find(bad), std::string::npos) << bad;
  EXPECT_EQ(testing::xml_defect(serve_html({})), "");
}

}  // namespace
}  // namespace deepinfer::bench
