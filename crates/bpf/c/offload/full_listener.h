/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* In each doubt truepeer's own listener takes the connection, validates it, and logs the reason if it
 * refuses. Until then only the sender's SYN was acknowledged, so the listener gets the stream from its first
 * byte. */
#pragma once
#include "offload/full_cookie.h"
#include "offload/full_reply.h"
#include "proxy_header/header.h"
#include "lib/request.h"

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

/* A sender's connection that has a cookie and no dial yet. No pointer to it is passed to a function that is
 * not inlined: then it takes no stack. */
struct opening {
	const struct full_listener *listener;
	const struct flow_key *key;
	const struct timestamps *timestamps; /* of the segment */
	__u32 options; /* as in our timestamp, which the sender echoes */
	__u32 clock;   /* our timestamps towards the sender minus our milliseconds */
	__u64 now;     /* of the monotonic clock */
};

/* Not inlined: its stack would be added to that of all other paths. */
static __noinline int give_to_listener(struct __sk_buff *skb, const struct segment *segment, __u32 options,
				       const struct timestamps *timestamps)
{
	__u32 ours = milliseconds() + clock_towards(&segment->ip.destination, &segment->ip.source, 0);
	struct request request = {
		.rcv_tsval = timestamps->value,
		.rcv_tsecr = ours,
		.mss = mss_of_class(options >> 4),
		.rcv_wscale = OWN_SCALE,
		.snd_wscale = options & 15,
		.wscale_ok = 1,
		.sack_ok = 1,
		.tstamp_ok = 1,
	};

	return make_connection(skb, segment, &request);
}

/* Has the kernel make a connection of the sender's segment, whose cookie is_our_cookie() has checked. If
 * nothing listens any more, the sender gets a reset. */
static __always_inline int hand_over(struct __sk_buff *skb, const struct segment *segment,
				     const struct opening *opening)
{
	if (!give_to_listener(skb, segment, opening->options, opening->timestamps))
		return pass_full(TO_TRUEPEER);
	count_full(FULL_FAILED);
	if (become_reset(skb, segment))
		return DROP;
	return send_back(skb);
}
