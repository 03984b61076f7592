// stat, verify and gc: what the keeper of a store does, told in a table or as JSON.

#include "cache/tiers/tier_workers.h"
#include "cache_command.h"
#include "flag_values.h"
#include "human_units.h"
#include "progress.h"
#include "store_report.h"
#include "terminal.h"

namespace deepinfer::cache {
namespace {

constexpr int64_t kMaxCapacity = int64_t{1} << 60;

void show_progress(StoreAdmin& store, cli::ProgressLine& progress, const char* label) {
  store.on_progress([&progress, label](const StoreUsage& seen) {
    progress.update(label, 0, 0, fmt::format("{} pages, {}", seen.pages, cli::human_bytes(seen.bytes)));
  });
}

Result<int> run_stat(const StoreFlags& flags) {
  DI_ASSIGN_OR_RETURN(const auto store, open_store_admin({.directory = flags.directory, .read_only = true}));
  const InterruptStop stop;
  cli::ProgressLine progress;
  show_progress(*store, progress, "reading");
  const Result<StoreReport> report = store->stat(wall_seconds(), stop.token());
  progress.clear();
  if (!report) return ended(report.error());
  DI_RETURN_IF_ERROR(
      cli::write_output(flags.json ? report_json(flags.directory, *report) : format_report(flags.directory, *report)));
  return 0;
}

struct VerifyFlags {
  StoreFlags store;
  bool remove = false;
};

Result<int> run_verify(const VerifyFlags& flags) {
  const std::string& directory = flags.store.directory;
  DI_ASSIGN_OR_RETURN(const auto store, open_store_admin({.directory = directory, .read_only = !flags.remove}));
  const InterruptStop stop;
  cli::ProgressLine progress;
  show_progress(*store, progress, "checking");
  const Result<StoreVerification> found = store->verify(flags.remove, stop.token());
  progress.clear();
  if (!found) return ended(found.error());
  DI_RETURN_IF_ERROR(
      cli::write_output(flags.store.json ? verification_json(directory, *found) : format_verification(directory, *found)));
  return damaged(*found).pages == 0 ? 0 : 1;
}

struct GcFlags {
  StoreFlags store;
  int64_t capacity = 0;
  std::string kv_directory;
};

Result<int> run_gc(const GcFlags& flags) {
  const std::string& directory = flags.store.directory;
  DI_ASSIGN_OR_RETURN(
      const auto store,
      open_store_admin({.directory = directory, .capacity_bytes = flags.capacity, .directory_url = flags.kv_directory}));
  const InterruptStop stop;
  const Result<StoreCollection> collected = store->gc(wall_seconds(), stop.token());
  if (!collected) return ended(collected.error());
  DI_RETURN_IF_ERROR(
      cli::write_output(flags.store.json ? collection_json(directory, *collected) : format_collection(directory, *collected)));
  return 0;
}

}  // namespace

void add_stat_command(CLI::App& cache, cli::Command& chosen) {
  CLI::App* command = cache.add_subcommand("stat", "What a store holds, by model, class, age and time left");
  auto flags = std::make_shared<StoreFlags>();
  flags->add_to(*command);
  command->callback([flags, &chosen] { chosen = [flags] { return run_stat(*flags); }; });
}

void add_verify_command(CLI::App& cache, cli::Command& chosen) {
  CLI::App* command = cache.add_subcommand("verify", "Read every page and check every checksum");
  auto flags = std::make_shared<VerifyFlags>();
  flags->store.add_to(*command);
  command->add_flag("--remove", flags->remove, "Damaged pages go");
  command->footer(
      "Exit code 1 if a page is damaged, also if it was removed. An engine never uses a damaged page: it computes it.\n\n"
      "Example:\n  deepinfer cache verify /var/lib/deepinfer/kv --remove");
  command->callback([flags, &chosen] { chosen = [flags] { return run_verify(*flags); }; });
}

void add_gc_command(CLI::App& cache, cli::Command& chosen) {
  CLI::App* command = cache.add_subcommand("gc", "Remove what has expired and what is beyond a size");
  auto flags = std::make_shared<GcFlags>();
  flags->store.add_to(*command);
  cli::add_size(*command, "--capacity", flags->capacity, 1, kMaxCapacity,
                "Bytes that may stay; what would expire first goes (default: any number)");
  command
      ->add_option(
          "--kv-directory", flags->kv_directory,
          "Redis of the engines on a shared store, which then forgets what goes: redis://... or unix://PATH (default: none)")
      ->type_name("URL");
  command->callback([flags, &chosen] { chosen = [flags] { return run_gc(*flags); }; });
}

}  // namespace deepinfer::cache
