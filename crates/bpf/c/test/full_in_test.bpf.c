/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* For tests only: full_in stops once between the look-up of a dial and its lock, until the test lets it go.
 * The test decides in this way what other CPUs do in between. src/test/full.rs is the other side. */
#include "offload/full_layout.h"

struct full_stop {
	__u32 is_wanted;
	__u32 has_come;
	__u32 may_go;
	__u32 has_gone; /* by itself: the test did not let it go in time */
};

TABLE(tf_stop, ARRAY, 1, __u32, struct full_stop, BPF_F_MMAPABLE);

/* BPF_MAX_LOOPS: some 50 ms. WAITS of them are long enough for a busy machine to run another thread. */
#define LOOKS (1 << 23)
#define WAITS 32

static volatile struct full_stop *full_stop(void)
{
	return ONLY_ENTRY(tf_stop);
}

static long look(__u32 number, void *context)
{
	volatile struct full_stop *stop = full_stop();

	(void)number, (void)context;
	return !stop || stop->may_go;
}

static __always_inline void stop_here(void)
{
	volatile struct full_stop *stop = full_stop();

	if (!stop || __sync_val_compare_and_swap((__u32 *)&stop->is_wanted, 1, 0) != 1)
		return;
	stop->has_come = 1;
	for (__u32 i = 0; i < WAITS && !stop->may_go; i++)
		bpf_loop(LOOKS, look, 0, 0);
	stop->has_gone = !stop->may_go;
}

#define BEFORE_LOCK() stop_here()
#include "offload/full_in.bpf.c"
