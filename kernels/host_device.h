// One spelling for functions that run on the host and inside CUDA kernels alike.
#pragma once

// Layout arithmetic stands once, in headers, under this macro: the host plans with it and device
// code reads memory with it. Plain C++ compilers see nothing.
#if defined(__CUDACC__)
#define EPD_HOST_DEVICE __host__ __device__
#else
#define EPD_HOST_DEVICE
#endif

// Before a loop whose arrays must live in registers; host compilers unroll as they like.
#if defined(__CUDACC__)
#define EPD_UNROLL _Pragma("unroll")
#else
#define EPD_UNROLL
#endif
