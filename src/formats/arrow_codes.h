// Numbers that Arrow's own schema of its files (format/Schema.fbs, format/Message.fbs) gives to types and messages.
#pragma once

#include <cstdint>

namespace deltatrain::formats {

// The Type union, in the order of the schema.
enum TypeCode : uint8_t {
  kNull = 1,
  kInt,
  kFloatingPoint,
  kBinary,
  kUtf8,
  kBool,
  kDecimal,
  kDate,
  kTime,
  kTimestamp,
  kInterval,
  kList,
  kStruct,
  kUnion,
  kFixedSizeBinary,
  kFixedSizeList,
  kMap,
  kDuration,
  kLargeBinary,
  kLargeUtf8,
  kLargeList,
  kRunEndEncoded,
  kBinaryView,
  kUtf8View,
  kListView,
  kLargeListView
};

constexpr uint8_t kSchemaMessage = 1;
constexpr uint8_t kRecordBatchMessage = 3;

}  // namespace deltatrain::formats
