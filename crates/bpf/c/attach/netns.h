/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Whether a socket is of our network namespace. Programs of a cgroup meet the sockets of all. Since
 * Linux 6.15 they can ask for the namespace's cookie. Before that, a lookup that they make runs the sk_lookup
 * programs of the packet's own namespace, and one of ours stands only in our own: it notes that it was asked.
 * The answer is kept with the socket. That program costs each lookup of a listener some nanoseconds, so it
 * stands only where it is needed. */
#pragma once
#include "attach/layout.h"

/* An address on which nothing listens. */
#define NO_PORT 0

SCRATCH(was_asked, __u32);

enum whose { UNKNOWN_WHOSE, OUR_OWN, SOMEBODY_ELSES };

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} whose_sockets SEC(".maps");

SEC("sk_lookup")
int whereabouts(struct bpf_sk_lookup *ctx)
{
	__u32 only = 0, yes = 1;

	if (ctx->local_port == NO_PORT)
		bpf_map_update_elem(&was_asked, &only, &yes, BPF_ANY);
	return SK_PASS;
}

static __always_inline int ask_whereabouts(struct __sk_buff *skb)
{
	struct bpf_sock_tuple nobody = {};
	__u32 *asked = ONLY_ENTRY(was_asked);

	if (!asked)
		return 0;
	*asked = 0;
	struct bpf_sock *sk = bpf_skc_lookup_tcp(skb, &nobody, sizeof(nobody.ipv4), BPF_F_CURRENT_NETNS, 0);
	if (sk)
		bpf_sk_release(sk);
	asm volatile("" ::: "memory"); /* another program writes it */
	return *asked;
}

/* Our namespace's, where the kernel lets this program ask for a packet's; otherwise 0. Set when it is
 * loaded. */
const volatile __u64 netns_cookie = 0;

static __always_inline int is_of_our_netns(struct __sk_buff *skb, struct bpf_sock *sk)
{
	if (netns_cookie)
		return bpf_get_netns_cookie(skb) == netns_cookie;
	__u32 *whose = bpf_sk_storage_get(&whose_sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (!whose)
		return ask_whereabouts(skb);
	if (*whose == UNKNOWN_WHOSE)
		*whose = ask_whereabouts(skb) ? OUR_OWN : SOMEBODY_ELSES;
	return *whose == OUR_OWN;
}
