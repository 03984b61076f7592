#include "cache_command.h"

#include <chrono>

#include "terminal.h"

namespace deepinfer::cache {

void StoreFlags::add_to(CLI::App& command) {
  command.add_option("store", directory, "Folder of the store: what --kv-store or --kv-shared name")
      ->required()
      ->type_name("DIR");
  command.add_flag("--json", json, "One JSON object");
}

InterruptStop::InterruptStop() {
  cli::catch_signals();
  watch_ = std::jthread([source = source_](const std::stop_token& done) mutable {
    while (!done.stop_requested() && !cli::interrupted()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (cli::interrupted()) source.request_stop();
  });
}

Result<int> ended(const Status& status) {
  if (status.code() == StatusCode::kCancelled && cli::interrupted()) return cli::kInterruptedExit;
  return Err(status);
}

void add_cache_command(CLI::App& app, cli::Command& chosen) {
  CLI::App* cache = app.add_subcommand("cache", "Look after a store of computed prefixes");
  cache->require_subcommand(1);
  add_stat_command(*cache, chosen);
  add_verify_command(*cache, chosen);
  add_gc_command(*cache, chosen);
  add_export_command(*cache, chosen);
  add_import_command(*cache, chosen);
  add_plan_command(*cache, chosen);
  cache->footer(
      "A local store (--kv-store) belongs to one process: gc, import and verify --remove need it to have ended. A shared one\n"
      "(--kv-shared) can be looked after while engines use it.\n\n"
      "Examples:\n"
      "  deepinfer cache stat /var/lib/deepinfer/kv\n"
      "  deepinfer cache verify /mnt/kv --remove\n"
      "  deepinfer cache gc /mnt/kv --capacity 2TiB");
}

}  // namespace deepinfer::cache
