#include <nlohmann/json.hpp>

#include "cache/tiers/admin_report.h"
#include "cache/tiers/tier_workers.h"
#include "cache_command.h"
#include "export_file.h"
#include "human_units.h"
#include "page_choice.h"
#include "progress.h"
#include "store_report.h"
#include "terminal.h"

namespace deepinfer::cache {
namespace {

struct ExportFlags {
  StoreFlags store;
  std::string file, secret_file;
  bool replace = false;
  PageChoice choice;
};

std::string format_export(const ExportFlags& flags, const StoreUsage& exported, const StoreVerification& checked) {
  const StoreUsage bad = damaged(checked);
  if (flags.store.json) {
    return nlohmann::ordered_json{{"store", flags.store.directory},
                                  {"file", flags.file},
                                  {"exported", {{"pages", exported.pages}, {"bytes", exported.bytes}}},
                                  {"damaged", {{"pages", bad.pages}, {"bytes", bad.bytes}}},
                                  {"problems", checked.problems}}
               .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
           "\n";
  }
  std::string out = fmt::format("{}: {} exported\n", cli::one_line(flags.file), usage_text(exported));
  if (bad.pages > 0) out += fmt::format("Damaged and left out: {} (see cache verify)\n", usage_text(bad));
  return out;
}

Result<int> run_export(const ExportFlags& flags) {
  const std::string& directory = flags.store.directory;
  DI_ASSIGN_OR_RETURN(const auto store, open_store_admin({.directory = directory, .read_only = true}));
  DI_ASSIGN_OR_RETURN(const StoreSecretId secret, secret_id_of(directory, flags.secret_file));
  const double now = wall_seconds();
  DI_ASSIGN_OR_RETURN(ExportFile file, ExportFile::Create(flags.file, {.secret_id = secret, .created = now}, flags.replace));
  const InterruptStop stop;
  cli::ProgressLine progress;
  StoreVerification checked;
  const Status walked = store->for_each(
      [&](const StoredPage& page) -> Status {
        KvStoreMiss why = KvStoreMiss::kNone;
        const Result<PageHeader> header = parse_header(page.record, why);
        if (header && !flags.choice.has(page, *header, now)) return Status::Ok();
        const ExpectedPage expected{.key = page.key, .exact = std::nullopt, .fingerprint = std::nullopt};
        if (!verify_record(page.record, expected, fmt::format("page {}", key_text(page.key)), checked)) return Status::Ok();
        progress.update("exporting", 0, 0, fmt::format("{} pages, {}", file.usage().pages, cli::human_bytes(file.usage().bytes)));
        return file.add(page);
      },
      stop.token());
  progress.clear();
  if (!walked.ok()) return ended(walked);
  DI_RETURN_IF_ERROR(file.finish(flags.replace));
  DI_RETURN_IF_ERROR(cli::write_output(format_export(flags, file.usage(), checked)));
  return damaged(checked).pages == 0 ? 0 : 1;
}

}  // namespace

void add_export_command(CLI::App& cache, cli::Command& chosen) {
  CLI::App* command = cache.add_subcommand("export", "Copy pages into one file, to be imported elsewhere");
  auto flags = std::make_shared<ExportFlags>();
  flags->store.add_to(*command);
  command->add_option("file", flags->file, "Where to; must not be there yet")->required()->type_name("FILE");
  command->add_flag("--replace", flags->replace, "It may be there: the new one takes its place");
  command->add_option("--secret-file", flags->secret_file, "Secret that the store is used with (default: DIR/secret)")
      ->type_name("FILE");
  flags->choice.add_to(*command);
  command->footer(
      "Every page is checked; damaged ones are left out, with exit code 1. The file says which secret its pages are named "
      "under,\n"
      "but not the secret itself: another machine finds them only with the same one (--kv-secret-file).\n\n"
      "Example:\n  deepinfer cache export /var/lib/deepinfer/kv agents.kv --class agent,pinned --newer-than 1d");
  command->callback([flags, &chosen] { chosen = [flags] { return run_export(*flags); }; });
}

}  // namespace deepinfer::cache
