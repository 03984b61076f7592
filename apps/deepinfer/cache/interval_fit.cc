#include "interval_fit.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace deepinfer::cache {
namespace {

constexpr double kLeastProbability = 1e-300;

double logistic(double x) { return 1 / (1 + std::exp(-x)); }
double log_normal(double seconds, double median, double sigma) {
  return seconds > 0 ? 0.5 * std::erfc(-std::log(seconds / median) / (sigma * std::sqrt(2.0))) : 0;
}

double distribution(IntervalFamily family, const std::vector<double>& p, double seconds) {
  switch (family) {
    case IntervalFamily::kExponential:
      return -std::expm1(-seconds / p[0]);
    case IntervalFamily::kWeibull:
      return -std::expm1(-std::pow(seconds / p[0], p[1]));
    case IntervalFamily::kLogNormal:
      return log_normal(seconds, p[0], p[1]);
    case IntervalFamily::kTwoLogNormals:
      return p[0] * log_normal(seconds, p[1], p[2]) + (1 - p[0]) * log_normal(seconds, p[3], p[4]);
  }
  return 0;
}

/// Of a lognormal: one that is wider says "some time within many decades", and its tail would be made up.
constexpr double kMostSigma = 3;

/// The search runs over all real numbers: probabilities through the logistic function, everything else through exp.
IntervalFit unpack(IntervalFamily family, const std::vector<double>& x) {
  IntervalFit fit{.family = family, .revisited = logistic(x[0]), .parameters = {}};
  for (size_t i = 1; i < x.size(); ++i) {
    const bool probability = family == IntervalFamily::kTwoLogNormals && i == 1;
    fit.parameters.push_back(probability ? logistic(x[i]) : std::exp(std::clamp(x[i], -40.0, 40.0)));
  }
  const auto names = parameter_names(family);
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].ends_with("sigma")) fit.parameters[i] = std::min(fit.parameters[i], kMostSigma);
  }
  return fit;
}

double negative_log_likelihood(const RevisitIntervals& intervals, const IntervalFit& fit) {
  double sum = 0, before = 0;
  for (size_t bin = 0; bin < RevisitIntervals::kBins; ++bin) {
    const double end = fit.followed_within(RevisitIntervals::edge(bin));
    if (intervals.ended[bin] > 0)
      sum -= static_cast<double>(intervals.ended[bin]) * std::log(std::max(end - before, kLeastProbability));
    if (intervals.open[bin] > 0)
      sum -= static_cast<double>(intervals.open[bin]) * std::log(std::max(1 - (before + end) / 2, kLeastProbability));
    before = end;
  }
  return sum;
}

using Point = std::vector<double>;

/// The method of Nelder and Mead: no derivatives, a few parameters.
Point minimum(const std::function<double(const Point&)>& f, const Point& start) {
  constexpr int kSteps = 600;
  constexpr double kSmall = 1e-9;
  struct Vertex {
    Point x;
    double y = 0;
  };
  std::vector<Vertex> simplex = {{start, f(start)}};
  for (size_t i = 0; i < start.size(); ++i) {
    Point x = start;
    x[i] += 0.7;
    simplex.push_back({x, f(x)});
  }
  const auto less = [](const Vertex& a, const Vertex& b) { return a.y < b.y; };
  const size_t n = start.size();
  for (int step = 0; step < kSteps; ++step) {
    std::sort(simplex.begin(), simplex.end(), less);
    if (simplex[n].y - simplex[0].y <= kSmall * std::abs(simplex[0].y)) break;
    Point middle(n);
    for (size_t v = 0; v < n; ++v) {
      for (size_t i = 0; i < n; ++i) middle[i] += simplex[v].x[i] / static_cast<double>(n);
    }
    const auto at = [&](double along) {
      Point x(n);
      for (size_t i = 0; i < n; ++i) x[i] = middle[i] + along * (simplex[n].x[i] - middle[i]);
      return Vertex{x, f(x)};
    };
    const Vertex reflected = at(-1);
    if (reflected.y < simplex[0].y) {
      Vertex expanded = at(-2);
      simplex[n] = expanded.y < reflected.y ? std::move(expanded) : reflected;
    } else if (reflected.y < simplex[n - 1].y) {
      simplex[n] = reflected;
    } else if (Vertex contracted = at(reflected.y < simplex[n].y ? -0.5 : 0.5);
               contracted.y < std::min(reflected.y, simplex[n].y)) {
      simplex[n] = std::move(contracted);
    } else {
      for (size_t v = 1; v <= n; ++v) {
        for (size_t i = 0; i < n; ++i) simplex[v].x[i] = (simplex[v].x[i] + simplex[0].x[i]) / 2;
        simplex[v].y = f(simplex[v].x);
      }
    }
  }
  return std::min_element(simplex.begin(), simplex.end(), less)->x;
}

/// Time within which a part of the intervals that ended did so.
double quantile(const RevisitIntervals& intervals, double part) {
  const double target = part * static_cast<double>(intervals.revisits());
  double sum = 0;
  for (size_t bin = 0; bin < RevisitIntervals::kBins; ++bin) {
    sum += static_cast<double>(intervals.ended[bin]);
    if (sum >= target) return RevisitIntervals::edge(bin);
  }
  return RevisitIntervals::edge(RevisitIntervals::kBins - 1);
}

std::vector<Point> starts(IntervalFamily family, const RevisitIntervals& intervals) {
  const double part = static_cast<double>(intervals.revisits()) / static_cast<double>(intervals.uses);
  const double odds = std::log(std::clamp(part, 0.01, 0.99) / (1 - std::clamp(part, 0.01, 0.99)));
  const auto log_quantile = [&](double q) { return std::log(quantile(intervals, q)); };
  switch (family) {
    case IntervalFamily::kExponential:
      return {{odds, log_quantile(0.6)}};
    case IntervalFamily::kWeibull:
      return {{odds, log_quantile(0.6), 0.0}, {odds, log_quantile(0.6), -0.7}};
    case IntervalFamily::kLogNormal:
      return {{odds, log_quantile(0.5), 0.0}, {odds + 1, log_quantile(0.7), 0.7}};
    case IntervalFamily::kTwoLogNormals:
      return {{odds, -1.0, log_quantile(0.1), 0.0, log_quantile(0.6), 0.0},
              {odds, 0.0, log_quantile(0.3), 0.0, log_quantile(0.8), 0.0},
              {odds, -2.0, log_quantile(0.05), 0.7, log_quantile(0.5), -0.5}};
  }
  return {};
}

/// Beyond the recording both are extrapolations.
double ks_distance(const RevisitIntervals& intervals, const IntervalFit& fit) {
  const std::vector<double> recorded = intervals.followed_within();
  double most = 0;
  for (size_t bin = 0; bin < RevisitIntervals::kBins && RevisitIntervals::edge(bin) <= intervals.span_seconds; ++bin)
    most = std::max(most, std::abs(recorded[bin] - fit.followed_within(RevisitIntervals::edge(bin))));
  return most;
}

IntervalFit fit_family(IntervalFamily family, const RevisitIntervals& intervals) {
  const auto cost = [&](const Point& x) { return negative_log_likelihood(intervals, unpack(family, x)); };
  Point best;
  for (const Point& start : starts(family, intervals)) {
    Point x = minimum(cost, minimum(cost, start));
    if (best.empty() || cost(x) < cost(best)) best = std::move(x);
  }
  IntervalFit fit = unpack(family, best);
  fit.log_likelihood = -cost(best);
  fit.bic = static_cast<double>(best.size()) * std::log(static_cast<double>(intervals.uses)) - 2 * fit.log_likelihood;
  fit.ks_distance = ks_distance(intervals, fit);
  return fit;
}

}  // namespace

std::string_view interval_family_name(IntervalFamily family) {
  constexpr std::string_view kNames[] = {"exponential", "weibull", "lognormal", "two lognormals"};
  return kNames[static_cast<size_t>(family)];
}

std::vector<std::string_view> parameter_names(IntervalFamily family) {
  switch (family) {
    case IntervalFamily::kExponential:
      return {"mean"};
    case IntervalFamily::kWeibull:
      return {"scale", "shape"};
    case IntervalFamily::kLogNormal:
      return {"median", "sigma"};
    case IntervalFamily::kTwoLogNormals:
      return {"weight", "median", "sigma", "second median", "second sigma"};
  }
  return {};
}

double IntervalFit::followed_within(double seconds) const { return revisited * distribution(family, parameters, seconds); }

std::vector<IntervalFit> fit_intervals(const RevisitIntervals& intervals) {
  std::vector<IntervalFit> fits;
  if (intervals.revisits() < kLeastRevisits) return fits;
  for (size_t f = 0; f < kIntervalFamilyCount; ++f) fits.push_back(fit_family(static_cast<IntervalFamily>(f), intervals));
  std::sort(fits.begin(), fits.end(), [](const IntervalFit& a, const IntervalFit& b) { return a.bic < b.bic; });
  return fits;
}

}  // namespace deepinfer::cache
