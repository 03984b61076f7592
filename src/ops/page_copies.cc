#include "ops/page_copies.h"

#include "base/status.h"

namespace deepinfer {
namespace {

class HostPageCopies final : public PageCopies {
 public:
  PinnedMemory allocate_pinned(int64_t bytes) override {
    return {static_cast<uint8_t*>(host_memory().allocate(bytes)), [](uint8_t* data) { host_memory().free(data); }};
  }
  void fence() override {}
  void operators_wait(Ticket) override {}
  Fence last_fence() const override { return 0; }
  Ticket to_device(std::span<const CopyPiece> pieces, Fence) override {
    for (const CopyPiece& p : pieces) host_memory().copy(p.device, p.host, p.bytes);
    return 0;
  }
  Ticket to_host(std::span<const CopyPiece> pieces, Fence) override {
    for (const CopyPiece& p : pieces) host_memory().copy(p.host, p.device, p.bytes);
    return 0;
  }
  bool done(Ticket) override { return true; }
  void wait(Ticket) override {}
};

}  // namespace

PageCopies& page_copies(DeviceMemory& memory) {
  static HostPageCopies host;
  if (memory.is_host()) return host;
  auto* source = dynamic_cast<PageCopySource*>(&memory);
  DI_CHECK(source != nullptr, "a device's memory without page copies");
  return source->page_copies();
}

}  // namespace deepinfer
