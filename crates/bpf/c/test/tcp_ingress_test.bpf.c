/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* For tests only: tcp_ingress with a test's answers in place of the kernel's. */
#include "test/fake_kernel.h"
#include "attach/tcp_ingress.bpf.c"
