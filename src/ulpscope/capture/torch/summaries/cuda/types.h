#ifndef ULPSCOPE_TYPES
#define ULPSCOPE_TYPES

#define DEVICE_MEMBER __device__ __forceinline__
#define DEVICE static DEVICE_MEMBER

// Conditions, for the compiler to put what is rare out of the way.
#define USUAL(condition) __builtin_expect(!!(condition), 1)
#define RARE(condition) __builtin_expect(!!(condition), 0)

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef short i16;
typedef long long i64;

#endif
