#include "sweep_report.h"

#include <gtest/gtest.h>

#include <cmath>

#include "apps/xml_check.h"

namespace deepinfer::bench {
namespace {

BenchResult result(int64_t concurrency, double shared, double throughput) {
  BenchResult r;
  r.conditions.concurrency = concurrency;
  r.conditions.workload.shared_prefix_ratio = shared;
  r.conditions.model.name = "<nano> & co";
  r.output_throughput = throughput;
  r.ttft = r.tpot = r.itl = r.e2el = distribution({1, 2, 3});
  return r;
}

std::vector<BenchResult> example() {
  return {result(4, 0, 30), result(1, 0, 10), result(16, 0, 60), result(1, 0.9, 20), result(4, 0.9, 50), result(16, 0.9, 90)};
}

TEST(SweepPlots, OneLineForEachOtherSetting) {
  const std::vector<Plot> plots = sweep_plots(example());
  ASSERT_EQ(plots.size(), 3u);
  EXPECT_EQ(plots[0].x_label, "concurrency");
  ASSERT_EQ(plots[0].lines.size(), 2u);
  EXPECT_EQ(plots[0].lines[0].label, "shared prefix 0");
  EXPECT_EQ(plots[0].lines[1].label, "shared prefix 0.9");
  ASSERT_EQ(plots[0].lines[0].points.size(), 3u);
  EXPECT_EQ(plots[0].lines[0].points[0].x, 1);  // in order
  EXPECT_EQ(plots[0].lines[0].points[2].y, 60);
  ASSERT_EQ(plots[1].lines.size(), 4u);
  EXPECT_EQ(plots[1].lines[3].label, "shared prefix 0.9, P99");
  EXPECT_TRUE(plots[1].lines[3].dashed);
  EXPECT_EQ(plots[1].lines[2].color, plots[1].lines[3].color);
}

TEST(SweepPlots, TheAxisIsWhatVaries) {
  EXPECT_EQ(sweep_plots({result(4, 0, 1), result(4, 0.5, 2)})[0].x_label, "shared prefix");
  EXPECT_EQ(sweep_plots({result(4, 0, 1)})[0].x_label, "concurrency");
  EXPECT_EQ(sweep_plots({result(4, 0, 1)})[1].lines[0].label, "P50");
  EXPECT_TRUE(sweep_plots({})[0].lines.empty());
}

TEST(SweepReport, RowsFitTheirHeadings) {
  EXPECT_EQ(sweep_row(example()[0]).size(), sweep_heading().size());
  const auto commas = [](const std::string& text) { return std::count(text.begin(), text.end(), ','); };
  EXPECT_EQ(commas(sweep_csv_row(example()[0])), commas(sweep_csv_heading()));
  BenchResult empty = result(1, 0, 0);
  empty.conditions.model.name = "a, b";
  empty.ttft = distribution({});
  EXPECT_EQ(sweep_csv_row(empty).find("nan"), std::string::npos);
  EXPECT_EQ(sweep_row(empty).find("nan"), std::string::npos);
}

TEST(SweepReport, PageIsWellFormedAndLoadsNothing) {
  for (const auto& results : {example(), std::vector<BenchResult>{}}) {
    const std::string page = sweep_html(results);
    EXPECT_EQ(testing::xml_defect(page), "") << page;
    EXPECT_EQ(page.find("<script"), std::string::npos);
    EXPECT_EQ(page.find("src="), std::string::npos);
    EXPECT_EQ(page.find("href="), std::string::npos);
    EXPECT_EQ(page.find("url("), std::string::npos);
    EXPECT_EQ(page.find("<nano>"), std::string::npos);
  }
}

}  // namespace
}  // namespace deepinfer::bench
