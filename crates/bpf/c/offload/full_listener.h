/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* In each doubt truepeer's own listener takes the connection, validates it, and logs the reason if it refuses. Until then only the sender's SYN was
 * acknowledged, so the listener gets the stream from its first byte. */
#pragma once
#include "offload/full_cookie.h"
#include "offload/full_make.h"
#include "proxy_header/header.h"
#include "attach/request.h"

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
	struct header_scratch *scratch = header_scratch();

	if (!scratch)
		return lose_for(FULL_FAILED);
	struct pending *pending = &scratch->pending; /* too large for the stack */
	__builtin_memset(pending, 0, sizeof(*pending));
	pending->ts_recent = timestamps->value;
	pending->clock_offset = clock_towards(&segment->ip.destination, &segment->ip.source, 0);
	pending->mss = mss_of_class(options >> 4);
	pending->snd_wscale = options & 15;
	pending->rcv_wscale = OWN_SCALE;
	pending->agreed = WINDOW_SCALE | SELECTIVE_ACKS;
	pending->has_timestamps = 1;
	if (!begin_again(skb, segment, pending)) {
		mark_down(TO_TRUEPEER);
		return PASS;
	}
	mark_down(FULL_FAILED);
	if (become_reset(skb, segment))
		return DROP;
	return answer(skb);
}
