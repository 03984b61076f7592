#include "cache/tiers/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>

namespace deepinfer::store_testing {
namespace {

constexpr const char* kRoleFlag = "--role";

std::map<std::string, ProcessRole::Body>& roles() {
  static std::map<std::string, ProcessRole::Body> all;
  return all;
}

}  // namespace

ProcessRole::ProcessRole(const char* name, Body body) { roles().emplace(name, body); }

pid_t start_process(const std::string& role, const std::vector<std::string>& arguments, int* output) {
  std::string program = "/proc/self/exe", flag = kRoleFlag, name = role;
  std::vector<std::string> copies = arguments;
  std::vector<char*> argv = {program.data(), flag.data(), name.data()};
  for (std::string& argument : copies) argv.push_back(argument.data());
  argv.push_back(nullptr);
  int ends[2] = {-1, -1};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  if (output != nullptr) {
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    *output = ends[0];
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], kProcessOutput);
  }
  pid_t process = -1;
  EXPECT_EQ(::posix_spawn(&process, "/proc/self/exe", &actions, nullptr, argv.data(), environ), 0);
  ::posix_spawn_file_actions_destroy(&actions);
  if (output != nullptr) ::close(ends[1]);
  return process;
}

int wait_for_process(pid_t process) {
  int status = 0;
  EXPECT_EQ(::waitpid(process, &status, 0), process);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int64_t kill_after(pid_t process, int output, int64_t wanted) {
  int64_t got = 0;
  char byte = 0;
  while (got < wanted && ::read(output, &byte, 1) == 1) ++got;
  ::kill(process, SIGKILL);
  EXPECT_EQ(wait_for_process(process), -SIGKILL);
  ::close(output);
  return got;
}

}  // namespace deepinfer::store_testing

#ifdef __SANITIZE_THREAD__
// Debian's RocksDB is built without ThreadSanitizer, which so doesn't see how its threads wait for each other.
extern "C" const char* __tsan_default_suppressions() { return "race:librocksdb\n"; }  // NOLINT(bugprone-reserved-identifier)
#endif

int main(int argc, char** argv) {
  namespace testing_roles = deepinfer::store_testing;
  if (argc >= 3 && std::string(argv[1]) == testing_roles::kRoleFlag) {
    const auto role = testing_roles::roles().find(argv[2]);
    return role == testing_roles::roles().end() ? 99 : role->second({argv + 3, argv + argc});
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
