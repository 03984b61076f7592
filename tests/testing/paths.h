#pragma once

#include <string>

namespace deepinfer::testing {

/// Root of the source tree.
std::string source_dir();
/// models/nano in the source tree.
std::string nano_dir();
/// The built program.
std::string program();
/// The folder of shared material ($DEEPINFER_SHARED, default ../shared beside the source tree); empty where it is absent.
std::string shared_dir();
/// A fresh, empty folder for this test case, below the system's temporary folder.
std::string make_temp_dir(const std::string& name);

}  // namespace deepinfer::testing
