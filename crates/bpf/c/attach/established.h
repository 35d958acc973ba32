/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Segments of a handshake whose header is off, and whose socket the kernel has not made yet. */
#pragma once
#include "attach/establish.h"
#include "attach/late.h"

static __always_inline int is_same_flow(const struct flow *one, const struct flow *other)
{
	return is_same_address(&one->client, &other->client) && one->client_port == other->client_port &&
	       one->client_version == other->client_version && one->header == other->header &&
	       one->delta == other->delta;
}

/* The header came again, perhaps because the kernel never got the validated segment (a firewall may drop it):
 * the new one counts. The entry is replaced as a whole because tcp_end may be reading it. */
static __noinline int validate_again(struct __sk_buff *skb, struct incoming *in)
{
	struct header_scratch *scratch = header_scratch();
	__u32 len = in->segment.payload_len < HEADER_START ? in->segment.payload_len : HEADER_START;
	__u32 last = len - 1;
	struct flow flow = {};

	asm volatile("%0 &= 127" : "+r"(last));
	if (!scratch || last >= HEADER_START || !is_intact(skb, &in->segment))
		return -1;
	if (bpf_skb_load_bytes(skb, in->segment.payload_at, scratch->start, last + 1))
		return -1;
	enum verdict verdict = read_header(scratch, len, STREAM);
	if ((verdict != ADDRESSES && verdict != ITSELF) || scratch->header.len > in->segment.payload_len)
		return -1;
	scratch->walk = scratch->header.tlvs;
	if (lacks_proof(skb, in, scratch, in->segment.payload_len) ||
	    name_client(skb, in, &scratch->header, verdict, &flow))
		return -1;
	if (is_same_flow(&flow, &in->pending->flow))
		return 0;
	scratch->pending = *in->pending;
	scratch->pending.flow = flow;
	scratch->pending.have = scratch->header.len;
	scratch->pending.destination = scratch->header.destination;
	scratch->pending.is_busy = 0;
	return bpf_map_update_elem(&tp_pending, &in->key, &scratch->pending, BPF_EXIST);
}

/* For a segment that must make the connection itself: a listener with TCP_DEFER_ACCEPT drops the last ACK
 * that we have made. A request socket refuses the echo of a later packet than its SYN-ACK (TSEcrRejected),
 * such as the acknowledgement of a part of the header. It ignores an echo of zero. */
static __noinline int blank_late_echo(struct __sk_buff *skb, const struct segment *segment,
				      const struct pending *pending)
{
	struct timestamps timestamps = {};
	struct options *options = read_options(skb, segment);

	if (!pending->has_timestamps || pending->is_by_cookie || read_timestamps(options, &timestamps))
		return 0;
	__u32 at = options->timestamps + TIMESTAMP_ECHO;
	if (timestamps.echo - pending->tsval_first > pending->tsval_synack - pending->tsval_first &&
	    at <= OPTIONS_END - 4)
		set_word(skb, segment, sizeof(struct tcphdr) - OPTIONS_AT + at, timestamps.echo, 0);
	return 0;
}

/* The header is off, but the socket was not there when we looked: the accept queue was full. The kernel has
 * then dropped the last ACK, and takes any later segment in its place as soon as there is room. But if it
 * keeps no request socket (a cookie, or it has given the handshake up), it takes only a segment that comes
 * right after the SYN; and what is replayed comes only with our own ACK. */
static __always_inline int on_established(struct __sk_buff *skb, struct incoming *in)
{
	__u32 family = 0;

	if (in->pending->flow.header == MAY_COME_LATE) {
		enum counter reason = validate_late(skb, &in->segment, &in->pending->flow, 0);
		if (reason == REFUSED_AFTER_WAIT)
			return refuse_for(skb, in, reason);
		if (reason)
			return drop(in->port, reason);
	}
	enum socket_state state = find_socket(skb, &in->segment, in->pending->isn + 1 + in->pending->guess, &family);
	int is_given_up = state == LISTENS && !why_not_again(in->port, in->pending);
	if ((in->pending->is_by_cookie && state == ANSWERS_COOKIE) || is_given_up || in->pending->replay_len > 0) {
		if (!is_intact(skb, &in->segment))
			return drop(in->port, REFUSED_DAMAGED);
		if (is_given_up && begin_again(skb, &in->segment, in->pending))
			return drop(in->port, FAILED);
		return end_handshake(skb, in);
	}
	if (in->segment.payload_len > 0 && offset_of(&in->segment, in->pending) == 0 && in->pending->have > 0) {
		validate_again(skb, in);
		in->pending = bpf_map_lookup_elem(&tp_pending, &in->key);
		if (!in->pending || in->pending->stage != ESTABLISHED)
			return DROP; /* its socket has just been made; the sender sends this again */
	}
	if (state == HALF_OPEN)
		blank_late_echo(skb, &in->segment, in->pending);
	shift_seq(skb, &in->segment, in->pending->flow.delta);
	return go_on(skb);
}
