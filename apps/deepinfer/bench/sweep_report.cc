#include "sweep_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>

#include "html_page.h"

namespace deepinfer::bench {
namespace {

/// What a sweep varies.
struct Setting {
  const char* label;
  std::function<double(const BenchResult&)> value;
};

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all = {
      {"concurrency", [](const BenchResult& r) { return static_cast<double>(r.conditions.concurrency); }},
      {"input length", [](const BenchResult& r) { return static_cast<double>(r.conditions.workload.input_len); }},
      {"output length", [](const BenchResult& r) { return static_cast<double>(r.conditions.workload.output_len); }},
      {"shared prefix", [](const BenchResult& r) { return r.conditions.workload.shared_prefix_ratio; }},
  };
  return all;
}

bool varies(const Setting& setting, const std::vector<BenchResult>& results) {
  return std::any_of(results.begin(), results.end(),
                     [&](const BenchResult& r) { return setting.value(r) != setting.value(results.front()); });
}

/// A column of table, CSV and page alike.
struct Column {
  const char* heading;  ///< of the table
  const char* name;     ///< in CSV
  int width, digits;
  std::function<double(const BenchResult&)> value;
};

const std::vector<Column>& columns() {
  const auto count = [](int64_t BenchResult::*member) {
    return [member](const BenchResult& r) { return static_cast<double>(r.*member); };
  };
  static const std::vector<Column> all = {
      {"conc", "concurrency", 6, 0, settings()[0].value},
      {"input", "input_len", 7, 0, settings()[1].value},
      {"output", "output_len", 6, 0, settings()[2].value},
      {"shared", "shared_prefix_ratio", 6, 2, settings()[3].value},
      {"req/s", "request_throughput", 8, 2, [](const BenchResult& r) { return r.request_throughput; }},
      {"out tok/s", "output_throughput", 9, 1, [](const BenchResult& r) { return r.output_throughput; }},
      {"all tok/s", "total_token_throughput", 9, 1, [](const BenchResult& r) { return r.total_token_throughput; }},
      {"TTFT p50", "median_ttft_ms", 9, 2, [](const BenchResult& r) { return r.ttft.median; }},
      {"p99 ms", "p99_ttft_ms", 9, 2, [](const BenchResult& r) { return r.ttft.p99; }},
      {"ITL p50", "median_itl_ms", 8, 2, [](const BenchResult& r) { return r.itl.median; }},
      {"p99 ms", "p99_itl_ms", 8, 2, [](const BenchResult& r) { return r.itl.p99; }},
      {"hit %", "cache_hit_percent", 6, 1, [](const BenchResult& r) { return r.cache_hit_rate * 100; }},
      {"saved %", "work_saved_percent", 7, 1, [](const BenchResult& r) { return r.work_saved * 100; }},
      {"idle %", "device_idle_percent", 6, 1, [](const BenchResult& r) { return r.device_idle_share * 100; }},
      {"failed", "failed", 6, 0, count(&BenchResult::failed)},
  };
  return all;
}

std::string cell(const Column& column, const BenchResult& result) {
  const double value = column.value(result);
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, column.digits) : "-";
}

struct Curve {
  const char* suffix;
  bool dashed;
  std::function<double(const BenchResult&)> value;
};

/// Lines of one plot: for every combination of what varies beside `x`, each of the curves.
Plot make_plot(const char* title, const char* y_label, const std::vector<BenchResult>& results, const Setting& x,
               const std::vector<Curve>& curves) {
  Plot plot{title, fmt::format("{} over {}", title, x.label), x.label, y_label, {}};
  std::vector<std::string> combinations;
  for (const BenchResult& result : results) {
    std::string combination;
    for (const Setting& setting : settings()) {
      if (&setting == &x || !varies(setting, results)) continue;
      combination += fmt::format("{}{} {:g}", combination.empty() ? "" : ", ", setting.label, setting.value(result));
    }
    const auto known = std::find(combinations.begin(), combinations.end(), combination);
    const auto group = static_cast<size_t>(known - combinations.begin());
    if (known == combinations.end()) {
      combinations.push_back(combination);
      for (const Curve& curve : curves) {
        const std::string suffix =
            *curve.suffix == '\0' || combination.empty() ? curve.suffix : fmt::format(", {}", curve.suffix);
        plot.lines.push_back({combination + suffix, {}, static_cast<int>(group), curve.dashed});
        if (plot.lines.back().label.empty()) plot.lines.back().label = y_label;
      }
    }
    for (size_t i = 0; i < curves.size(); ++i)
      plot.lines[group * curves.size() + i].points.push_back({x.value(result), curves[i].value(result)});
  }
  for (PlotLine& line : plot.lines) {
    std::stable_sort(line.points.begin(), line.points.end(), [](const PlotPoint& a, const PlotPoint& b) { return a.x < b.x; });
  }
  return plot;
}

std::string html_table(const std::vector<BenchResult>& results) {
  std::string out = "<div class=\"wide\"><table>\n<thead><tr>";
  for (const Column& column : columns()) out += fmt::format("<th scope=\"col\">{}</th>", column.name);
  out += "</tr></thead>\n<tbody>\n";
  for (const BenchResult& result : results) {
    out += "<tr>";
    for (const Column& column : columns()) out += fmt::format("<td>{}</td>", cell(column, result));
    out += "</tr>\n";
  }
  return out + "</tbody>\n</table></div>\n";
}

/// What all runs have in common, from the first.
std::string html_conditions(const BenchResult& result) {
  std::string out = "<dl>\n";
  const auto add = [&](const std::string& name, const std::string& value) {
    out += fmt::format("<dt>{}</dt><dd>{}</dd>\n", xml_escape(name), xml_escape(value));
  };
  add("commit", result.conditions.commit);
  add("date", result.conditions.date);
  const nlohmann::ordered_json json = to_json(result.conditions);
  for (const auto& [name, value] : json.items()) {
    const bool swept = name == "concurrency" || name == "input_len" || name == "output_len" || name == "shared_prefix_ratio" ||
                       name == "num_prompts" || name == "seed";
    const std::string text = value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    if (!swept) add(name, value.is_string() ? value.get<std::string>() : text);
  }
  return out + "</dl>\n";
}

}  // namespace

std::string sweep_heading() {
  std::string out;
  for (const Column& column : columns()) out += fmt::format("{:>{}} ", column.heading, column.width);
  out.back() = '\n';
  return out;
}

std::string sweep_row(const BenchResult& result) {
  std::string out;
  for (const Column& column : columns()) out += fmt::format("{:>{}} ", cell(column, result), column.width);
  out.back() = '\n';
  return out;
}

std::string sweep_csv_heading() {
  std::string out;
  for (const Column& column : columns()) out += fmt::format("{},", column.name);
  return out + "completed,cancelled,duration_s,total_input_tokens,total_output_tokens,seed,model,backend,threads,commit,date\n";
}

std::string sweep_csv_row(const BenchResult& r) {
  std::string out;
  for (const Column& column : columns()) out += csv_number(column.value(r)) + ",";
  const BenchConditions& c = r.conditions;
  return out + fmt::format("{},{},{},{},{},{},{},{},{},{},{}\n", r.completed, r.cancelled, csv_number(r.duration),
                           r.total_input_tokens, r.total_output_tokens, c.workload.seed, csv_field(c.model.name),
                           csv_field(c.engine.backend), c.threads, csv_field(c.commit), csv_field(c.date));
}

std::vector<Plot> sweep_plots(const std::vector<BenchResult>& results) {
  const auto& all = settings();
  const auto varied = std::find_if(all.begin(), all.end(), [&](const Setting& s) { return varies(s, results); });
  const Setting& x = varied == all.end() ? all.front() : *varied;
  return {
      make_plot("Output token throughput", "tokens/s", results, x,
                {{"", false, [](const BenchResult& r) { return r.output_throughput; }}}),
      make_plot("Time to first token", "ms", results, x,
                {{"P50", false, [](const BenchResult& r) { return r.ttft.median; }},
                 {"P99", true, [](const BenchResult& r) { return r.ttft.p99; }}}),
      make_plot("Inter-token latency", "ms", results, x,
                {{"P50", false, [](const BenchResult& r) { return r.itl.median; }},
                 {"P99", true, [](const BenchResult& r) { return r.itl.p99; }}}),
  };
}

std::string sweep_html(const std::vector<BenchResult>& results) {
  const std::string model = results.empty() ? "no runs" : results.front().conditions.model.name;
  const std::string title = fmt::format("deepinfer bench sweep: {}", model);
  std::string out;
  const std::vector<Plot> plots = sweep_plots(results);
  for (size_t i = 0; i < plots.size(); ++i)
    out += fmt::format("<figure>\n{}</figure>\n", render_svg({plots[i]}, fmt::format("plot{}", i)));
  out += html_table(results);
  if (!results.empty()) out += html_conditions(results.front());
  return html_page(title, out);
}

}  // namespace deepinfer::bench
