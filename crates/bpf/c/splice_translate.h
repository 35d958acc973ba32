/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* From one connection of a flow to the other. docs/internals/splice.md tells why all numbers differ by constants. */
#pragma once
#include "splice_header.h"
#include "splice_judge.h"

#define LOOPBACK 1 /* LOOPBACK_IFINDEX of the kernel */

/* The other connection's clock may run so much ahead: a segment that was under way for less time is not taken for an older one (PAWS).
 * TSecr is shifted back by the same, so no end measures a wrong round trip. */
#define CLOCK_LEAD 128

static __always_inline __u32 window_of(const struct tcphdr *tcp, const struct face *face)
{
	return (__u32)bpf_ntohs(tcp->window) << (face->peer_scale & 15);
}

/* A window as it is written to the peer of this face. */
static __always_inline __be16 scaled(__u32 window, const struct face *face)
{
	window >>= face->own_scale & 15;
	return bpf_htons(window < 65535 ? window : 65535);
}

static __always_inline __u32 milliseconds(void)
{
	return bpf_ktime_get_ns() / 1000000;
}

/* How far the peer's clock is behind that of our other socket, which the other peer knows. Once, of a segment that was taken. */
static __always_inline void compare_clocks(struct face *face, const struct face *other, __u32 tsval)
{
	if (face->known & TS_SHIFT || !(other->known & CLOCK))
		return;
	face->ts_shift = milliseconds() + other->clock + CLOCK_LEAD - tsval;
	note(face, TS_SHIFT);
}

static __always_inline void shift_timestamps(struct rewriting *rewriting, const struct face *from, struct face *to, int is_good)
{
	struct timestamps timestamps;

	if (read_timestamps(rewriting->options, &timestamps))
		return;
	__u32 value = timestamps.value + from->ts_shift;
	set_option_word(rewriting->options, rewriting->options->timestamps + 2, value);
	/* TSecr counts in segments with ACK only. */
	if (rewriting->was.ack)
		set_option_word(rewriting->options, rewriting->options->timestamps + 6, timestamps.echo - to->ts_shift);
	if (is_good)
		raise(&to->tsval, value);
}

/* What our own socket has acknowledged stays acknowledged: the other peer would discard what comes with a much older acknowledgement, data
 * and all (RFC 5961, 5.2). The window ends where it ended. */
static __always_inline void raise_ack(__u32 *ack, __u32 *window, const struct face *to)
{
	if (!is_before(*ack, to->ack))
		return;
	__u32 gap = to->ack - *ack;
	*window = *window > gap ? *window - gap : 0;
	*ack = to->ack;
}

/* Of a late one (is_late_ack()): the number that the receiver expects. It ignores older ones. */
static __always_inline __u32 number_for(const struct segment *segment, const struct face *from, const struct face *to)
{
	__u32 seq = segment->seq + from->shift;

	return to->known & SAID && is_before(seq, to->una) && is_late_ack(segment, from) ? to->una : seq;
}

/* `is_tail`: our sockets still stand. `is_good`: the segment was taken, so that it tells the other peer something. */
static __always_inline int translate(struct __sk_buff *skb, const struct segment *segment, struct face *from, struct face *to,
				     int is_tail, int is_good)
{
	struct rewriting rewriting = {};

	if (begin_rewriting(skb, segment, &rewriting))
		return -1;
	struct tcphdr *tcp = &rewriting.is;
	__u32 ack = segment->ack - to->shift;
	__u32 window = window_of(tcp, from);
	__u32 seq = number_for(segment, from, to);

	if (is_tail)
		raise_ack(&ack, &window, to);
	tcp->seq = bpf_htonl(seq);
	if (tcp->ack)
		tcp->ack_seq = bpf_htonl(ack);
	tcp->window = scaled(window, to);
	tcp->source = to->key.local_port;
	tcp->dest = to->key.sender_port;
	if (rewriting.options) {
		if (rewriting.options->timestamps)
			shift_timestamps(&rewriting, from, to, is_good);
		if (rewriting.options->sack)
			shift_sack_blocks(rewriting.options, -to->shift);
	}
	if (finish_rewriting(skb, segment, &rewriting) || change_addresses(skb, segment, &to->key.local, &to->key.sender))
		return -1;
	if (is_good)
		note_told(to, end_of(segment) + from->shift, ack, ack + window);
	return 0;
}

/* On its way to the other peer: up to a socket of this host, or out. */
static __always_inline int send_on(struct __sk_buff *skb, const struct face *to)
{
	struct ethhdr none = {};

	if (to->device != LOOPBACK) {
		/* A tag of VLAN 0 says a priority on the wire that it came by. */
		if (skb->vlan_present && bpf_skb_vlan_pop(skb))
			return DROP;
		return bpf_redirect_neigh(to->device, 0, 0, 0);
	}
	if (skb->ifindex == LOOPBACK)
		return PASS;
	bpf_skb_store_bytes(skb, 0, &none, ETH_ALEN * 2, 0);
	return bpf_redirect(LOOPBACK, BPF_F_INGRESS);
}
