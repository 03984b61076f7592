#pragma once

/// Of functions that the host's code and kernels both call, in headers that either compiler reads.
#ifdef __CUDACC__
#define DI_HOST_DEVICE __host__ __device__
#else
#define DI_HOST_DEVICE
#endif
