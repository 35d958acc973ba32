/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* For tests: other programs at tc. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define PASS -1 /* to the next program */

SEC("classifier")
int nothing(struct __sk_buff *skb)
{
	(void)skb;
	return PASS;
}

/* Such a program may be in front of splice_in. */
SEC("classifier")
int marks(struct __sk_buff *skb)
{
	skb->mark = 11;
	return PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
