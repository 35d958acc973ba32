/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* For tests only. It is included before a program's own, unchanged source and provides the kernel's answers:
 * the time, the route, the socket, the cookie. So BPF_PROG_TEST_RUN can run the programs over any history
 * that a test generates. With real sockets each step would need segments through a device, hundreds of times
 * slower, and no test could control when a socket appears or disappears. src/test/tcp.rs is the other
 * side. */
#pragma once
#include "attach/layout.h"

struct cookie {
	__u32 seq, ack; /* of the segment that answers it, as the kernel sees it; ack 0: none */
};

struct fake_kernel {
	__u64 now_ns;
	__u32 has_socket;
	__u32 is_here; /* the route says: for this host */
	struct cookie cookies[2];
	__u32 clones, clone_flags, clone_len; /* the last packet that was sent on its way as a copy */
	__u32 unused;
	__u8 clone[128];
	struct flow_key key; /* whose socket is made, or has ended */
	struct bpf_sock sk;
	__u32 unused_too;
};

_Static_assert(sizeof(struct bpf_sock) == 80, "src/test/tcp.rs");
_Static_assert(sizeof(struct fake_kernel) == 296, "src/test/tcp.rs");

TABLE(tp_fake_kernel, ARRAY, 1, __u32, struct fake_kernel, 0);

static __always_inline struct fake_kernel *fake_kernel(void)
{
	return ONLY_ENTRY(tp_fake_kernel);
}

static __always_inline __u64 fake_time(void)
{
	struct fake_kernel *at = fake_kernel();
	return at ? at->now_ns : 0;
}

static __always_inline struct bpf_sock *fake_socket(void)
{
	struct fake_kernel *at = fake_kernel();
	return at && at->has_socket ? &at->sk : 0;
}

/* 0: it answers a cookie. */
static __always_inline long fake_cookie(__u32 seq, __u32 ack)
{
	struct fake_kernel *at = fake_kernel();

	if (!at)
		return -1;
	for (__u32 i = 0; i < 2; i++)
		if (at->cookies[i].ack && at->cookies[i].seq == seq && at->cookies[i].ack == ack)
			return 0;
	return -1;
}

/* BPF_FIB_LKUP_RET_NOT_FWDED, or BPF_FIB_LKUP_RET_SUCCESS: it is forwarded to another host. */
static __always_inline long fake_route(void)
{
	struct fake_kernel *at = fake_kernel();
	return at && at->is_here ? 4 : 0;
}

static __always_inline long fake_clone(struct __sk_buff *skb, __u32 flags)
{
	struct fake_kernel *at = fake_kernel();
	__u32 len = skb->len;

	if (!at)
		return -1;
	at->clones++;
	at->clone_flags = flags;
	at->clone_len = len;
	if (len == 0)
		return 0;
	__u32 last = (len < sizeof(at->clone) ? len : (__u32)sizeof(at->clone)) - 1;
	asm volatile("%0 &= 127" : "+r"(last));
	bpf_skb_load_bytes(skb, 0, at->clone, last + 1);
	return 0;
}

/* Nonzero: it makes no connection. */
static __always_inline long fake_assign(void)
{
	struct bpf_sock *sk = fake_socket();
	return sk && sk->state == BPF_TCP_LISTEN ? 0 : -1;
}

/* What the kernel would be shown is made all the same: the verifier wants the arguments of the functions
 * around it. */
#define SHOW(a, b) asm volatile("" : : "r"(a), "r"(b) : "memory")

#define bpf_ktime_get_ns() fake_time()
#define bpf_fib_lookup(skb, route, len, flags) ({ SHOW(skb, route); fake_route(); })
#define bpf_skc_lookup_tcp(skb, tuple, len, netns, flags) ({ (void)(len); SHOW(skb, tuple); fake_socket(); })
#define bpf_sk_lookup_tcp(skb, tuple, len, netns, flags) ({ (void)(len); SHOW(skb, tuple); fake_socket(); })
#define assign_request(skb, sk, request) ({ SHOW(sk, request); fake_assign(); })
/* It has sent all numbers, so it takes every acknowledgement. */
#define bpf_tcp_sock(sk)                                                                                     \
	({                                                                                                   \
		static const struct bpf_tcp_sock tcp = { .snd_nxt = ~0U };                                   \
		(void)(sk);                                                                                  \
		(struct bpf_tcp_sock *)&tcp;                                                                 \
	})
#define bpf_sk_release(sk) ((void)(sk))
#define bpf_tcp_check_syncookie(sk, ip, ip_len, tcp, tcp_len) \
	({ SHOW(sk, ip); fake_cookie(bpf_ntohl((tcp)->seq), bpf_ntohl((tcp)->ack_seq)); })
#define bpf_clone_redirect(skb, device, flags) fake_clone(skb, flags)
