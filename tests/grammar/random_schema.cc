#include "grammar/random_schema.h"

#include <algorithm>
#include <string>
#include <vector>

namespace deepinfer::testing {

using Json = nlohmann::ordered_json;

nlohmann::ordered_json random_schema(Random& random, int depth) {
  const auto pick = [&](std::initializer_list<const char*> list) {
    return std::string(*(list.begin() + random.below(static_cast<int64_t>(list.size()))));
  };
  switch (random.below(depth > 0 ? 12 : 7)) {
    case 0: {
      Json s{{"type", "string"}};
      if (random.below(2) == 0) s["minLength"] = random.below(3);
      if (random.below(2) == 0) s["maxLength"] = 3 + random.below(30);
      return s;
    }
    case 1:
      return {{"type", "string"}, {"pattern", pick({"^[a-z]+$", "ab", "^(\\d{2}-)*x$", "^[^@]+@[^@]+$", "^a.*b$", "(^x)|(y$)"})}};
    case 2: {
      Json s{{"type", "integer"}};
      if (random.below(2) == 0) s["minimum"] = random.between(-1000, 100);
      if (random.below(2) == 0) s["maximum"] = random.between(101, 100000);
      if (random.below(3) == 0) s["multipleOf"] = random.between(1, 9);
      return s;
    }
    case 3: {
      Json s{{"type", "number"}};
      if (random.below(2) == 0) s["minimum"] = static_cast<double>(random.between(-1000, 100)) / 8;
      if (random.below(2) == 0) s["exclusiveMaximum"] = static_cast<double>(random.between(101, 10000)) / 4;
      return s;
    }
    case 4:
      return {{"enum", {"a", "abc", 12, nullptr, true, {{"k", {1, "x"}}}}}};
    case 5:
      return {{"type", {"boolean", "null"}}};
    case 6:
      return {{"type", "string"}, {"not", {{"enum", {"a", "b", "the"}}}}};
    case 7: {
      Json s{{"type", "array"}, {"items", random_schema(random, depth - 1)}};
      if (random.below(2) == 0) s["minItems"] = random.below(3);
      if (random.below(2) == 0) s["maxItems"] = random.between(3, 6);
      if (random.below(4) == 0) s["prefixItems"] = {random_schema(random, depth - 1), random_schema(random, 0)};
      return s;
    }
    case 8:
      return {{"anyOf", {random_schema(random, depth - 1), random_schema(random, depth - 1)}}};
    default: {
      Json s{{"type", "object"}, {"properties", Json::object()}};
      std::vector<std::string> required;
      for (const char* name : {"name", "the", "id", "a\"b", "é", "value"}) {
        if (random.below(2) == 0) continue;
        s["properties"][name] = random_schema(random, depth - 1);
        if (random.below(2) == 0) required.emplace_back(name);
      }
      s["required"] = required;
      if (random.below(3) == 0) s["additionalProperties"] = random.below(2) == 0 ? Json(false) : random_schema(random, depth - 1);
      if (random.below(5) == 0) s["patternProperties"] = {{"^x", random_schema(random, 0)}};
      if (random.below(5) == 0) s["minProperties"] = 2;
      if (random.below(5) == 0) s["maxProperties"] = std::max<int64_t>(3, static_cast<int64_t>(required.size()));
      return s;
    }
  }
}

}  // namespace deepinfer::testing
