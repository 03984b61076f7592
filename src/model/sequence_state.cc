#include "model/sequence_state.h"

#include <algorithm>
#include <cstdlib>

namespace deepinfer {
namespace {

class HeapPages final : public PageAllocator {
 public:
  explicit HeapPages(int64_t page_bytes) : bytes_(static_cast<size_t>((page_bytes + 63) / 64 * 64)) {}
  uint8_t* allocate() override { return static_cast<uint8_t*>(std::aligned_alloc(64, bytes_)); }
  void free(uint8_t* page) override { std::free(page); }

 private:
  size_t bytes_;
};

}  // namespace

PageLayout::PageLayout(const ModelConfig& config)
    : main_row_bytes(config.main_row_bytes()), index_row_bytes(config.index_row_bytes()) {
  for (int64_t layer : config.kv_source_layer_ids) {
    Source source;
    source.layer = layer;
    source.ratio = config.compress_ratio(layer);
    source.rows_per_page = kPagePositions / source.ratio;
    source.main_offset = page_bytes;
    page_bytes += source.rows_per_page * main_row_bytes;
    source.index_offset = page_bytes;
    page_bytes += source.rows_per_page * index_row_bytes;
    sources.push_back(source);
  }
}

std::unique_ptr<PageAllocator> make_heap_pages(int64_t page_bytes) { return std::make_unique<HeapPages>(page_bytes); }

SequenceState::SequenceState(const ModelConfig& config, const PageLayout& layout, PageAllocator* pages, int64_t slack)
    : layout_(&layout),
      allocator_(pages),
      slack_(slack),
      window_capacity_(config.sliding_window + slack),
      window_row_bytes_(config.window_row_bytes()),
      tail_capacity_(slack + 2),
      head_dim_(config.head_dim),
      windows_(config.num_hidden_layers * window_capacity_ * window_row_bytes_),
      tails_(static_cast<int64_t>(layout.sources.size()) * tail_capacity_ * 2 * head_dim_) {
  DI_CHECK(slack >= 0, "slack = {}", slack);
}

SequenceState::~SequenceState() {
  for (uint8_t* page : pages_) allocator_->free(page);
}

Status SequenceState::reserve(int64_t length) {
  const auto need = static_cast<size_t>(layout_->page_bytes > 0 ? (length + kPagePositions - 1) / kPagePositions : 0);
  const size_t had = pages_.size();
  while (pages_.size() < need) {
    uint8_t* page = allocator_->allocate();
    if (page == nullptr) {
      const size_t got = pages_.size();
      while (pages_.size() > had) {
        allocator_->free(pages_.back());
        pages_.pop_back();
      }
      return Status::ResourceExhausted("KV cache: {} pages of {} bytes needed for {} positions, {} could be had", need,
                                       layout_->page_bytes, length, got);
    }
    pages_.push_back(page);
  }
  // Doubling: a decode step must not copy the history each time.
  if (history_.capacity() < static_cast<size_t>(length))
    history_.reserve(std::max(static_cast<size_t>(length), 2 * history_.capacity()));
  return Status::Ok();
}

void SequenceState::release_reserved(int64_t count) {
  DI_CHECK(count * kPagePositions >= length_ || layout_->page_bytes == 0, "{} pages cannot hold {} positions", count, length_);
  while (page_count() > count) {
    allocator_->free(pages_.back());
    pages_.pop_back();
  }
}

Status SequenceState::truncate(int64_t length) {
  if (length < 0 || length > length_) return Status::OutOfRange("truncate to {}: the sequence has {} positions", length, length_);
  if (length == 0) {
    high_ = 0;
  } else if (length < high_ - slack_) {
    return Status::FailedPrecondition("truncate to {}: the sequence reached {} and keeps {} positions for rollback", length,
                                      high_, slack_);
  }
  length_ = length;
  history_.resize(static_cast<size_t>(length));
  const auto keep = static_cast<size_t>((length + kPagePositions - 1) / kPagePositions);
  while (pages_.size() > keep) {
    allocator_->free(pages_.back());
    pages_.pop_back();
  }
  return Status::Ok();
}

void SequenceState::advance(int64_t count) {
  length_ += count;
  high_ = std::max(high_, length_);
}

PagedRows SequenceState::main_rows(int64_t source) const {
  const PageLayout::Source& s = layout_->sources[static_cast<size_t>(source)];
  return {pages_.data(), s.rows_per_page, s.main_offset, layout_->main_row_bytes};
}

PagedRows SequenceState::index_rows(int64_t source) const {
  const PageLayout::Source& s = layout_->sources[static_cast<size_t>(source)];
  return {pages_.data(), s.rows_per_page, s.index_offset, layout_->index_row_bytes};
}

int64_t SequenceState::resident_bytes() const {
  return windows_.size() + tails_.size() * static_cast<int64_t>(sizeof(float)) +
         static_cast<int64_t>(pages_.size()) * layout_->page_bytes + static_cast<int64_t>(history_.capacity() * sizeof(int32_t));
}

}  // namespace deepinfer
