/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The segments by which tcp_ingress ends a handshake, tells where it stands, or refuses it. */
#pragma once
#include "attach/layout.h"
#include "lib/reply.h"

/* The segment may have come long after our SYN-ACK. From its echo (TSecr) the kernel would take that for a
 * round trip, and would repeat what is lost on this connection only after three times as long. It would also
 * refuse the echo of a later packet than the SYN-ACK (TSEcrRejected). It ignores an echo of zero. The value
 * stays: the kernel echoes it, and the sender measures its own round trip by that. After a cookie the echo
 * stays, too: it says which options were agreed on. */
static __always_inline void blank_echo(struct options *options, const struct pending *pending)
{
	if (!options->timestamps || option_len(options, options->timestamps) != OPTION_TIMESTAMPS_LEN)
		return;
	if (!pending->has_timestamps || pending->is_by_cookie)
		return;
	for (__u32 i = TIMESTAMP_ECHO; i < OPTION_TIMESTAMPS_LEN; i++)
		*option_byte(options, options->timestamps + i) = 0;
}

/* The packet becomes the ACK that the kernel still waits for: right behind the SYN, with no data but what is
 * replayed. Call it for a pending connection whose header is off. */
GLOBAL int become_last_ack(struct __sk_buff *skb, const struct segment *segment,
			   const struct pending *pending)
{
	if (!segment || !pending)
		return -1;
	__u32 replay = pending->replay_len;
	struct options *options = read_options(skb, segment);
	struct tcphdr tcp;

	if (replay > REPLAY_MAX || bpf_skb_load_bytes(skb, segment->ip.payload_at, &tcp, sizeof(tcp)))
		return -1;
	if (options)
		blank_echo(options, pending);
	tcp.seq = bpf_htonl(pending->isn + 1 + pending->guess);
	/* After `replay_len` bytes, `replay` is zero. */
	__u32 sum = bpf_csum_diff(0, 0, (__be32 *)pending->replay, REPLAY_MAX, 0);
	if (become_bare_ack(skb, segment, &tcp, options, replay, sum))
		return -1;
	if (replay > 0) {
		__u32 last = replay - 1;

		asm volatile("%0 &= 15" : "+r"(last)); /* for the verifier of Linux 6.1: 1 to 16 bytes, in `pending` */
		if (bpf_skb_store_bytes(skb, segment->payload_at, pending->replay, last + 1, 0))
			return -1;
	}
	return options ? write_options(skb, segment, options) : 0;
}

/* Answers an intact segment with an ACK that says where the handshake stands, as the kernel would: tcp_egress
 * puts it into the sender's numbers. The segment itself is for nobody any more. It may be forged, and the
 * sender believes the answer's window: that is the largest that a SYN-ACK can have. */
GLOBAL int say_where(struct __sk_buff *skb, const struct segment *segment, const struct pending *pending)
{
	if (!segment || !pending)
		return -1;
	struct tcphdr reply = {
		.seq = bpf_htonl(pending->our_isn + 1),
		.ack_seq = bpf_htonl(pending->isn + 1 + pending->guess),
		.ack = 1,
		.window = bpf_htons(65535 >> (pending->agreed & WINDOW_SCALE ? pending->rcv_wscale & 15 : 0)),
	};

	if (become_reply(skb, segment, &reply))
		return -1;
	swap_link_addresses(skb);
	return bpf_clone_redirect(skb, skb->ifindex, 0);
}

/* Answers an intact segment with a RST, and makes of it the RST that ends the kernel's socket, which expects
 * `kernel_seq`: the sender may come again from the same port at once. tcp_egress will subtract `delta` from
 * what the answer acknowledges, so it is added here; 0 where neither a flow nor a pending connection is
 * left. */
GLOBAL int refuse(struct __sk_buff *skb, const struct segment *segment, __u32 kernel_seq, __u32 delta)
{
	if (!segment)
		return DROP;
	struct tcphdr reply = {
		.seq = segment->flags & ACK ? bpf_htonl(segment->ack) : 0,
		.ack_seq = bpf_htonl(end_of(segment) + delta),
		.ack = 1,
		.rst = 1,
	};
	struct tcphdr reset = {
		.source = segment->source_port,
		.dest = segment->destination_port,
		.seq = bpf_htonl(kernel_seq),
		.rst = 1,
	};

	if (become_reply(skb, segment, &reply))
		return DROP;
	swap_link_addresses(skb);
	bpf_clone_redirect(skb, skb->ifindex, 0);
	swap_link_addresses(skb);
	return write_tcp(skb, segment, &reset, &segment->ip.source, &segment->ip.destination) ? DROP : PASS;
}
