/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* In each doubt truepeer's own listener takes the connection, judges it, and logs the reason if it refuses. Until then only the sender's SYN was
 * acknowledged, so the listener gets the stream from its first byte. */
#pragma once
#include "full_cookie.h"
#include "full_make.h"
#include "header.h"
#include "request.h"

enum at_socket { NONE_THERE, LISTENER_THERE, OTHER_THERE };

static __always_inline enum at_socket socket_there(struct __sk_buff *skb, const struct segment *segment)
{
	struct bpf_sock *sk = look_up(skb, segment);

	if (!sk)
		return NONE_THERE;
	int listens = sk->state == BPF_TCP_LISTEN;
	bpf_sk_release(sk);
	return listens ? LISTENER_THERE : OTHER_THERE;
}

/* Has the kernel make a connection of the sender's segment, whose cookie is_our_cookie() has checked. If nothing listens any more, the sender gets a
 * reset. */
static __always_inline int hand_over(struct __sk_buff *skb, const struct segment *segment, __u32 options, const struct timestamps *timestamps)
{
	struct workbench *bench = workbench();

	if (!bench)
		return lose_for(FULL_FAILED);
	struct embryo *embryo = &bench->embryo; /* too large for the stack */
	__builtin_memset(embryo, 0, sizeof(*embryo));
	embryo->ts_recent = timestamps->value;
	embryo->clock_offset = clock_towards(&segment->ip.destination, &segment->ip.source, 0);
	embryo->mss = mss_of_class(options >> 4);
	embryo->snd_wscale = options & 15;
	embryo->rcv_wscale = OWN_SCALE;
	embryo->agreed = WINDOW_SCALE | SELECTIVE_ACKS;
	embryo->has_timestamps = 1;
	if (!begin_again(skb, segment, embryo)) {
		mark_down(TO_TRUEPEER);
		return PASS;
	}
	mark_down(FULL_FAILED);
	if (become_reset(skb, segment))
		return DROP;
	return answer(skb);
}
