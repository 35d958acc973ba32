/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Has the kernel make a connection of a handshake that it does not know, or has given up. */
#pragma once
#include "lib/sk.h"

/* struct bpf_tcp_req_attrs (include/net/tcp.h). */
struct request {
	__u32 rcv_tsval, rcv_tsecr;
	__u16 mss;
	__u8 rcv_wscale, snd_wscale;
	__u8 ecn_ok, wscale_ok, sack_ok, tstamp_ok, usec_ts_ok;
	__u8 reserved[3];
};

_Static_assert(sizeof(struct request) == 20, "include/net/tcp.h");

#ifndef assign_request
/* bpf_sk_assign_tcp_reqsk(skb, sk, request, sizeof(*request)). Its number is another one in each kernel:
 * src/again.rs finds it and puts it in the place of "tprq", or takes the call out. */
static __always_inline long assign_request(struct __sk_buff *skb, struct bpf_sock *sk,
					   struct request *request)
{
	long result;

	asm volatile("r1 = %[skb]\n"
		     "r2 = %[sk]\n"
		     "r3 = %[request]\n"
		     "r4 = 20\n"
		     ".byte 0x85, 0x20, 0, 0, 0x74, 0x70, 0x72, 0x71\n" /* call of a kernel function */
		     "%[result] = r0\n"
		     : [result] "=r"(result)
		     : [skb] "r"(skb), [sk] "r"(sk), [request] "r"(request)
		     : "r0", "r1", "r2", "r3", "r4", "r5", "memory");
	return result;
}
#endif

/* The segment, which must acknowledge our SYN-ACK and be what follows the SYN, will end the handshake at the
 * listener, as if it answered a SYN cookie: the kernel makes the connection of it if the accept queue has
 * room. Nonzero: the kernel does not do it (no listener, an MPTCP one, or what was agreed on is switched off
 * by now). */
GLOBAL int make_connection(struct __sk_buff *skb, const struct segment *segment, struct request *request)
{
	if (!segment || !request)
		return -1;
	struct bpf_sock_tuple tuple = {};
	__u32 len = tuple_of(&segment->ip, segment->source_port, segment->destination_port, &tuple);
	struct bpf_sock *sk = len == sizeof(tuple.ipv4)
		? bpf_sk_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0)
		: bpf_sk_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return -1;
	long result = assign_request(skb, sk, request);
	bpf_sk_release(sk);
	return result ? -1 : 0;
}
