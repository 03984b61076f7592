#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "cache/tiers/local_store.h"
#include "cache/tiers/shared_store.h"
#include "cache/tiers/tier_workers.h"
#include "cache_command.h"
#include "export_file.h"
#include "flag_values.h"
#include "page_choice.h"
#include "progress.h"
#include "store_report.h"
#include "terminal.h"

namespace deepinfer::cache {
namespace {

struct ImportFlags {
  StoreFlags store;
  std::string file, secret_file;
  std::optional<std::string> create;
  PageChoice choice;
};

/// What an export holds, once every byte of it has been checked.
struct ExportContents {
  std::map<std::string, StoreUsage> models;  ///< by fingerprint
  PageHeader first;                          ///< of the first page; meaningful unless there are no models
};

using Visit = std::function<Status(const PageExportReader::Entry& entry)>;

Status walk(PageExportReader& reader, const char* label, const std::stop_token& stop, const Visit& visit) {
  cli::ProgressLine progress;
  reader.rewind();
  for (;;) {
    if (stop.stop_requested()) return Status::Cancelled("interrupted");
    DI_ASSIGN_OR_RETURN(const std::optional<PageExportReader::Entry> entry, reader.next());
    if (!entry) return Status::Ok();
    DI_RETURN_IF_ERROR(visit(*entry));
    progress.update(label, static_cast<double>(reader.position()), static_cast<double>(reader.size()),
                    fmt::format("{} pages", reader.pages()));
  }
}

Result<ExportContents> check_export(PageExportReader& reader, const std::stop_token& stop) {
  ExportContents contents;
  DI_RETURN_IF_ERROR(walk(reader, "checking", stop, [&](const PageExportReader::Entry& entry) {
    if (contents.models.empty()) contents.first = entry.header;
    contents.models[hex_text(entry.header.fingerprint)].add(static_cast<int64_t>(entry.page.record.size()));
    return Status::Ok();
  }));
  return contents;
}

/// Pages under another secret would lie in the store and never be found.
Status check_secret(const ImportFlags& flags, const StoreSecretId& of_export) {
  DI_ASSIGN_OR_RETURN(const StoreSecretId here, secret_id_of(flags.store.directory, flags.secret_file));
  if (!is_known(of_export) || here == of_export) return Status::Ok();
  if (!is_known(here)) {
    return Status::FailedPrecondition(
        "{0}: has no secret: the next engine would make one, and find none of these pages. Copy the secret that they are named "
        "under to {0}/secret, or name it here with --secret-file and to engines with --kv-secret-file",
        flags.store.directory);
  }
  return Status::FailedPrecondition(
      "{}: its pages are named under another secret than those of {}: no request would find them. Let engines use this store "
      "with the secret of the other one (--kv-secret-file), and name it here with --secret-file",
      flags.file, flags.store.directory);
}

/// Unless they are named, only pages of a model that the store knows are taken: others would take space and be hit by nobody.
Status check_models(const ImportFlags& flags, const ExportContents& contents, const StoreReport& store) {
  if (!flags.choice.fingerprints.empty() || store.generations.empty()) return Status::Ok();
  for (const auto& [fingerprint, usage] : contents.models) {
    if (store.generations.contains(fingerprint)) continue;
    return Status::FailedPrecondition(
        "{}: has {} of model {}, and {} has none of that model; with --fingerprint {} they are stored beside the others",
        flags.file, usage_text(usage), fingerprint.substr(0, 16), flags.store.directory, fingerprint.substr(0, 16));
  }
  return Status::Ok();
}

/// Makes an empty store for pages such as the export has.
Status create_store(const ImportFlags& flags, const ExportContents& contents) {
  if (contents.models.empty())
    return Status::FailedPrecondition("{}: has no pages: nothing says what the store is for", flags.file);
  const KvPageShape shape{.group_bytes = contents.first.group_bytes};
  if (*flags.create == "local") {
    const auto made = LocalStore::Open(shape, contents.first.fingerprint, {.directory = flags.store.directory});
    return made ? Status::Ok() : made.error();
  }
  SharedStoreOptions options{.directory = flags.store.directory};
  options.gc_interval_seconds = 0;
  const auto made = SharedStore::Open(shape, contents.first.fingerprint, options);
  return made ? Status::Ok() : made.error();
}

Result<std::unique_ptr<StoreAdmin>> open_store(const ImportFlags& flags, const ExportContents& contents) {
  const StoreAdminOptions options{.directory = flags.store.directory};
  auto store = open_store_admin(options);
  if (store || store.error().code() != StatusCode::kNotFound || !flags.create) return store;
  DI_RETURN_IF_ERROR(create_store(flags, contents));
  return open_store_admin(options);
}

struct Imported {
  StoreUsage stored, left_out;
};

Result<Imported> import_pages(const ImportFlags& flags, PageExportReader& reader, StoreAdmin& store,
                              const std::stop_token& stop) {
  Imported imported;
  const double now = wall_seconds();
  // As engines do: an expiry that a clock far ahead has given is not kept.
  const double latest = now + KvRetention{}.longest_ttl();
  const Status walked = walk(reader, "importing", stop, [&](const PageExportReader::Entry& entry) {
    const auto bytes = static_cast<int64_t>(entry.page.record.size());
    if (!flags.choice.has(entry.page, entry.header, now)) {
      imported.left_out.add(bytes);
      return Status::Ok();
    }
    StoredPage page = entry.page;
    page.expiry = std::min(page.expiry, latest);
    Status stored = store.import_page(page);
    if (stored.ok()) imported.stored.add(bytes);
    return stored;
  });
  if (!walked.ok()) return Err(walked.with_context(fmt::format("after {}", usage_text(imported.stored))));
  return imported;
}

std::string format_import(const ImportFlags& flags, const Imported& imported) {
  if (flags.store.json) {
    return nlohmann::ordered_json{{"store", flags.store.directory},
                                  {"file", flags.file},
                                  {"imported", {{"pages", imported.stored.pages}, {"bytes", imported.stored.bytes}}},
                                  {"left_out", {{"pages", imported.left_out.pages}, {"bytes", imported.left_out.bytes}}}}
               .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
           "\n";
  }
  std::string out = fmt::format("{}: {} imported\n", cli::one_line(flags.store.directory), usage_text(imported.stored));
  if (imported.left_out.pages > 0) out += fmt::format("Left out, expired or not chosen: {}\n", usage_text(imported.left_out));
  return out;
}

Result<int> run_import(const ImportFlags& flags) {
  const InterruptStop stop;
  DI_ASSIGN_OR_RETURN(PageExportReader reader, open_export(flags.file));
  // All of it is checked before anything is stored.
  const Result<ExportContents> contents = check_export(reader, stop.token());
  if (!contents) return ended(contents.error());
  DI_RETURN_IF_ERROR(check_secret(flags, reader.header().secret_id));
  DI_ASSIGN_OR_RETURN(const auto store, open_store(flags, *contents));
  const Result<StoreReport> report = store->stat(wall_seconds(), stop.token());
  if (!report) return ended(report.error());
  DI_RETURN_IF_ERROR(check_models(flags, *contents, *report));
  const Result<Imported> imported = import_pages(flags, reader, *store, stop.token());
  if (!imported) return ended(imported.error());
  DI_RETURN_IF_ERROR(cli::write_output(format_import(flags, *imported)));
  return 0;
}

}  // namespace

void add_import_command(CLI::App& cache, cli::Command& chosen) {
  CLI::App* command = cache.add_subcommand("import", "Store the pages of an exported file");
  auto flags = std::make_shared<ImportFlags>();
  flags->store.add_to(*command);
  command->add_option("file", flags->file, "What cache export wrote")->required()->type_name("FILE");
  command->add_option("--secret-file", flags->secret_file, "Secret that the store is used with (default: DIR/secret)")
      ->type_name("FILE");
  cli::add_choice(*command, "--create", flags->create, {"local", "shared"},
                  "If no store lies in the folder: make one of this kind (default: that is an error)");
  flags->choice.add_to(*command);
  command->footer(
      "The whole file is checked before the first page is stored; then pages become visible one by one, each whole. Pages of a\n"
      "model that the store has none of are refused unless --fingerprint names it. Times to live go on from where they were.\n\n"
      "Example:\n  deepinfer cache import /mnt/shared/kv agents.kv");
  command->callback([flags, &chosen] { chosen = [flags] { return run_import(*flags); }; });
}

}  // namespace deepinfer::cache
