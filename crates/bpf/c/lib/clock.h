/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
#pragma once
#include "attach/layout.h"

/* The unit of the kernel's timestamps. */
static __always_inline __u32 milliseconds(void)
{
	return bpf_ktime_get_ns() / 1000000;
}
