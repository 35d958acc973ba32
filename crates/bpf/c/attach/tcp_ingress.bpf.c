/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* TCP on its way in: from a sender to a backend on this host. Nothing is cut out of packets; sequence numbers
 * are shifted, so that the kernel takes the header for data that it already has. docs/internals/attach.md
 * draws it.
 *
 *   SYN      shifted by K, the length that this sender's header is guessed to have
 *   bare ACK held back: accept() must not return before the client is known
 *   header   in part: delivered as old data, which the kernel acknowledges and drops
 *            whole (N bytes) with data behind it: shifted like all that follow it
 *            whole and alone: becomes the bare ACK; once more, shifted
 *            (of either the kernel makes a socket, and tcp_end makes the pending connection a flow)
 *   rest     shifted by delta = K - N: not at all, if the guess was right
 */
#include "lib/ipv6_exthdr.h"
#include "attach/ports.h"
#include "attach/await_header.h"
#include "attach/established.h"
#include "attach/syn.h"
#include "attach/unlisted.h"

/* A request socket accepts any RST in its window of 65,536 numbers. An open socket accepts only the number
 * that it expects (RFC 5961), and a plain port would have an open socket by now. So a RST counts here only if
 * it has one of the two numbers that the sender knows. */
static __always_inline int on_rst(struct __sk_buff *skb, struct incoming *in)
{
	__u32 offset = offset_of(&in->segment, in->pending);

	if (offset != 0 && offset != in->pending->have)
		return drop(in->port, NOT_TAKEN);
	if (in->segment.flags & SYN || (in->segment.flags & ACK && !is_our_number(&in->segment, in->pending)))
		return drop(in->port, NOT_TAKEN);
	if (!is_intact(skb, &in->segment))
		return drop(in->port, REFUSED_DAMAGED);
	shift_seq(skb, &in->segment, in->pending->guess - offset);
	bpf_map_delete_elem(&tp_pending, &in->key);
	return go_on(skb);
}

static __always_inline int on_pending(struct __sk_buff *skb, struct incoming *in)
{
	__u32 tsval = 0;

	if (is_spoofed(skb, &in->segment, in->pending))
		return drop(in->port, NOT_TAKEN);
	if (in->segment.flags & RST)
		return on_rst(skb, in);
	/* SYN|ACK: with a byte of data the kernel would create a socket from it, which accept() returns. No sender
	 * has a reason to send it. */
	if (in->segment.flags & SYN)
		return drop(in->port, NOT_TAKEN);
	if (in->pending->stage == NO_SLOT)
		return refuse_for(skb, in, REFUSED_FULL);
	if (!is_acceptable(skb, &in->segment, in->pending, &tsval))
		return drop(in->port, NOT_TAKEN);
	if (in->pending->stage == ESTABLISHED)
		return on_established(skb, in);
	/* Somebody else's SYN may have come first: this one's place is known by the cookie that it answers. */
	if (!in->pending->is_proved && (!in->pending->is_by_cookie || proves_cookie(skb, &in->segment, in->pending)))
		in->pending->is_proved = 1;
	if (in->segment.payload_len == 0 && !(in->segment.flags & FIN))
		return on_bare_ack(skb, in, tsval);
	return on_data(skb, in, tsval);
}

/* Two processors may handle copies of a segment at the same time. Both would accept the header, the second
 * one after the socket was created, and refuse the connection; or one would write header bytes over the flow
 * that the other has just stored. So the second is dropped; the sender repeats it if it is needed. */
static __always_inline int on_pending_alone(struct __sk_buff *skb, struct incoming *in)
{
	struct pending *pending = in->pending; /* on_established() may find another one */

	if (__sync_lock_test_and_set(&pending->is_busy, 1))
		return drop(in->port, NOT_TAKEN);
	int fate = on_pending(skb, in);
	pending->is_busy = 0;
	return fate;
}

static __always_inline int on_unlisted(struct __sk_buff *skb, struct incoming *in)
{
	if (begins_with_unlisted_header(skb, &in->segment)) {
		count(in->port, HEADER_UNLISTED);
		tell(&in->key, IPPROTO_TCP, HEADER_UNLISTED, 0);
	}
	return PASS;
}

/* An unknown connection. Those that were open before the attachment continue. Half-open ones must not become
 * open. */
static __always_inline int on_unknown(struct __sk_buff *skb, struct incoming *in)
{
	__u32 family = 0;

	if (in->segment.flags & RST || in->port->state == DRAINING)
		return PASS;
	if (sender_rule(&in->key.remote, in->port->group) == 0)
		return on_unlisted(skb, in);
	switch (find_socket(skb, &in->segment, in->segment.seq, &family)) {
	case HALF_OPEN:
	case ANSWERS_COOKIE:
		if (!(in->segment.flags & ACK))
			return drop(in->port, NOT_TAKEN);
		if (!is_intact(skb, &in->segment))
			return drop(in->port, REFUSED_DAMAGED);
		count(in->port, REFUSED_STRAY);
		tell(&in->key, IPPROTO_TCP, REFUSED_STRAY, 0);
		return refuse(skb, &in->segment, in->segment.seq, 0);
	case OPEN: return PASS;
	default: return go_on(skb); /* the kernel answers it with a RST */
	}
}

/* A flow whose socket's end was missed: this SYN starts another connection, with its own header. */
static __always_inline int is_left_behind(struct __sk_buff *skb, const struct segment *segment,
					  const struct flow_key *key)
{
	__u32 family = 0;
	enum socket_state state = find_socket(skb, segment, 0, &family);

	if (state != NO_SOCKET && state != LISTENS)
		return 0;
	bpf_map_delete_elem(&tp_flows, key);
	return 1;
}

/* As far as they are hidden, a packet's addresses and ports stand where those of a segment do. */
_Static_assert(__builtin_offsetof(struct hidden, source_port) ==
		       __builtin_offsetof(struct segment, source_port), "on_unreadable()");

/* Not inlined: its stack would be added to that of all other paths (512 bytes along the deepest one). */
static __noinline int on_unreadable(struct __sk_buff *skb, struct incoming *in)
{
	const struct segment *segment = &in->segment;
	__u32 family = 0;

	enum finding found = find_hidden(skb, IPPROTO_TCP, (struct hidden *)&in->segment);
	if (found == NOTHING_HIDDEN || !sender_rules(&segment->ip.source) ||
	    !is_for_this_host(skb, &segment->ip, IPPROTO_TCP))
		return PASS;
	if (found == TOO_LONG_TO_SAY)
		return refuse_too_long();
	struct port *port = bpf_map_lookup_elem(&tp_ports, &segment->destination_port);
	if (!port || !sender_rule(&segment->ip.source, port->group) || !find_socket(skb, segment, 0, &family))
		return PASS;
	in->key = key_in(segment);
	count(port, REFUSED_FRAGMENT);
	tell(&in->key, IPPROTO_TCP, REFUSED_FRAGMENT, 0);
	return DROP;
}

static __always_inline int on_flow(struct __sk_buff *skb, struct incoming *in, struct flow *flow)
{
	if (flow->header == MAY_COME_LATE &&
	    (in->port = bpf_map_lookup_elem(&tp_ports, &in->segment.destination_port))) {
		enum counter reason = validate_late(skb, &in->segment, flow, 1);
		if (reason == REFUSED_AFTER_WAIT)
			return end_late(skb, in, flow);
		if (reason)
			return drop(in->port, reason);
	}
	if (!flow->delta)
		return PASS;
	shift_seq(skb, &in->segment, flow->delta);
	return go_on(skb);
}

SEC("classifier")
int tcp_ingress(struct __sk_buff *skb)
{
	struct incoming in = {};
	if (skb->pkt_type != 0 /* PACKET_HOST: TCP takes nothing else (tcp_v4_rcv) */ || is_elsewhere(skb))
		return PASS;
	if (read_segment(skb, &in.segment))
		return on_unreadable(skb, &in);
	if (is_other_port(in.segment.destination_port))
		return PASS;
	/* Validated on the device below (a port of a bridge): its numbers are the kernel's by now. */
	if (is_validated(skb))
		return PASS;
	in.key = key_in(&in.segment);
	int is_syn = (in.segment.flags & (SYN | ACK)) == SYN;
	struct flow *flow = bpf_map_lookup_elem(&tp_flows, &in.key);
	if (flow && !(is_syn && is_left_behind(skb, &in.segment, &in.key)))
		return on_flow(skb, &in, flow);
	in.port = bpf_map_lookup_elem(&tp_ports, &in.segment.destination_port);
	if (!in.port)
		return PASS;
	if (is_syn)
		return on_syn(skb, &in);
	in.pending = bpf_map_lookup_elem(&tp_pending, &in.key);
	if (in.pending && in.pending->is_answered)
		return on_pending_alone(skb, &in);
	/* The pending connection may have become a flow since the lookup, and the flow may have ended. */
	flow = bpf_map_lookup_elem(&tp_flows, &in.key) ?: bpf_map_lookup_elem(&tp_ended, &in.key);
	if (flow)
		return on_flow(skb, &in, flow);
	return on_unknown(skb, &in);
}

char _license[] SEC("license") = "Dual MIT/GPL";
