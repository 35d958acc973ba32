/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Programs that do nothing; only their link is used. The kernel reports for it whether its network namespace
 * still exists, and the link keeps no namespace alive. src/witness.rs attaches one of them. */
#include "attach/layout.h"

/* For the loopback device, which exists exactly as long as its namespace. */
SEC("classifier")
int witness_lo(struct __sk_buff *skb)
{
	(void)skb;
	return PASS;
}

/* For the namespace itself, where devices have no links. */
SEC("sk_lookup")
int witness_netns(struct bpf_sk_lookup *ctx)
{
	(void)ctx;
	return SK_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
