#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "testing/paths.h"

namespace deepinfer::testing {

/// make_temp_dir, removed again when the test program ends.
inline std::string scratch_dir(const std::string& name) {
  struct Cleaner {
    std::vector<std::string> directories;
    ~Cleaner() {
      std::error_code ignored;
      for (const std::string& directory : directories) std::filesystem::remove_all(directory, ignored);
    }
  };
  static Cleaner cleaner;
  cleaner.directories.push_back(make_temp_dir(name));
  return cleaner.directories.back();
}

}  // namespace deepinfer::testing
