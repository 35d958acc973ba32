/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Segments that the programs generate by rewriting the current one: the bare ACK that ends a handshake, and
 * the RST that refuses. */
#pragma once
#include "lib/tcp_opts.h"

static __always_inline __be16 fold(__u64 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

static __always_inline __u64 pseudo_header(const struct address *source, const struct address *destination,
					   __u8 version, __u32 tcp_len)
{
	struct {
		struct address source, destination;
		__be32 len, protocol;
	} pseudo = { .len = bpf_htonl(tcp_len), .protocol = bpf_htonl(IPPROTO_TCP) };

	if (version == 6) {
		pseudo.source = *source;
		pseudo.destination = *destination;
	} else {
		pseudo.source.word[0] = source->word[3];
		pseudo.destination.word[0] = destination->word[3];
	}
	return bpf_csum_diff(0, 0, (__be32 *)&pseudo, sizeof(pseudo), 0);
}

/* Truncates the packet to an IP header and `tcp_len` bytes. */
static __always_inline int cut_to(struct __sk_buff *skb, const struct segment *segment, __u32 tcp_len)
{
	if (bpf_skb_change_tail(skb, segment->ip.payload_at + tcp_len, 0))
		return -1;
	if (segment->ip.version == 6) {
		__be16 len = bpf_htons(tcp_len);
		return bpf_skb_store_bytes(skb, segment->ip.at + offsetof(struct ipv6hdr, payload_len), &len, sizeof(len), 0);
	}
	__be16 old = bpf_htons(segment->ip.len);
	__be16 len = bpf_htons(segment->ip.payload_at - segment->ip.at + tcp_len);
	bpf_l3_csum_replace(skb, segment->ip.at + offsetof(struct iphdr, check), old, len, sizeof(len));
	return bpf_skb_store_bytes(skb, segment->ip.at + offsetof(struct iphdr, tot_len), &len, sizeof(len), 0);
}

/* The segment may have come long after our SYN-ACK. From its echo (TSecr) the kernel would take that for a round trip, and would repeat what is
 * lost on this connection only after three times as long. It would also refuse the echo of a later packet than the SYN-ACK (TSEcrRejected).
 * It ignores an echo of zero. The value stays: the kernel echoes it, and the sender measures its own round trip by that. After a cookie the
 * echo stays, too: it says which options were agreed on. */
static __always_inline void blank_echo(struct options *options, const struct pending *pending)
{
	if (!options->timestamps || option_len(options, options->timestamps) != OPTION_TIMESTAMPS_LEN)
		return;
	if (!pending->has_timestamps || pending->is_by_cookie)
		return;
	for (__u32 i = TIMESTAMP_ECHO; i < OPTION_TIMESTAMPS_LEN; i++)
		*option_byte(options, options->timestamps + i) = 0;
}

/* Makes of a segment of a pending connection whose header is off the ACK that the kernel still waits for: right behind the SYN, with no data but what is replayed. Its
 * checksum is a new one, so the segment must have been found intact (csum.h): damage would go unnoticed. */
GLOBAL int become_last_ack(struct __sk_buff *skb, const struct segment *segment, const struct pending *pending)
{
	if (!segment || !pending)
		return -1;
	__u32 replay = pending->replay_len;
	__u32 len = segment->tcp_header_len + replay;
	struct options *options = read_options(skb, segment);
	struct tcphdr tcp;

	if (bpf_skb_load_bytes(skb, segment->ip.payload_at, &tcp, sizeof(tcp)))
		return -1;
	if (replay > REPLAY_MAX || cut_to(skb, segment, len))
		return -1;
	tcp.seq = bpf_htonl(pending->isn + 1 + pending->guess);
	tcp.fin = tcp.psh = tcp.urg = 0;
	tcp.urg_ptr = 0;
	tcp.check = 0;

	__u64 sum = pseudo_header(&segment->ip.source, &segment->ip.destination, segment->ip.version, len);
	sum = bpf_csum_diff(0, 0, (__be32 *)&tcp, sizeof(tcp), sum);
	/* Behind `replay_len` bytes, `replay` is zero. */
	sum = bpf_csum_diff(0, 0, (__be32 *)pending->replay, REPLAY_MAX, sum);
	if (options) {
		blank_echo(options, pending);
		sum = bpf_csum_diff(0, 0, (__be32 *)options->bytes, sizeof(options->bytes), sum);
	}
	tcp.check = fold(sum);
	if (bpf_skb_store_bytes(skb, segment->ip.payload_at, &tcp, sizeof(tcp), 0))
		return -1;
	if (replay > 0) {
		__u32 last = replay - 1;
		asm volatile("%0 &= 15" : "+r"(last)); /* for the verifier of Linux 6.1: 1 to 16 bytes, all inside the pending connection */
		if (bpf_skb_store_bytes(skb, segment->payload_at, pending->replay, last + 1, 0))
			return -1;
	}
	return options ? write_options(skb, segment, options) : 0;
}

static __always_inline void swap_link_addresses(struct __sk_buff *skb)
{
	struct ethhdr link;
	__u8 source[ETH_ALEN];

	if (link_header_len != sizeof(link) || bpf_skb_load_bytes(skb, 0, &link, sizeof(link)))
		return;
	__builtin_memcpy(source, link.h_source, ETH_ALEN);
	__builtin_memcpy(link.h_source, link.h_dest, ETH_ALEN);
	__builtin_memcpy(link.h_dest, source, ETH_ALEN);
	bpf_skb_store_bytes(skb, 0, &link, sizeof(link), 0);
}

/* The IP header's checksum stays valid: source and destination are at most swapped. */
static __always_inline int write_addresses(struct __sk_buff *skb, const struct segment *segment,
					   const struct address *source, const struct address *destination)
{
	if (segment->ip.version == 6) {
		bpf_skb_store_bytes(skb, segment->ip.at + offsetof(struct ipv6hdr, saddr), source, 16, 0);
		return bpf_skb_store_bytes(skb, segment->ip.at + offsetof(struct ipv6hdr, daddr), destination, 16, 0);
	}
	bpf_skb_store_bytes(skb, segment->ip.at + offsetof(struct iphdr, saddr), &source->word[3], 4, 0);
	return bpf_skb_store_bytes(skb, segment->ip.at + offsetof(struct iphdr, daddr), &destination->word[3], 4, 0);
}

/* Turns a packet that was cut to the length of a TCP header into this one. */
static __always_inline int write_tcp(struct __sk_buff *skb, const struct segment *segment, struct tcphdr *tcp,
				     const struct address *source, const struct address *destination)
{
	tcp->doff = 5;
	__u64 sum = pseudo_header(source, destination, segment->ip.version, sizeof(*tcp));
	tcp->check = fold(bpf_csum_diff(0, 0, (__be32 *)tcp, sizeof(*tcp), sum));
	if (write_addresses(skb, segment, source, destination))
		return -1;
	return bpf_skb_store_bytes(skb, segment->ip.payload_at, tcp, sizeof(*tcp), BPF_F_INVALIDATE_HASH);
}

/* Answers an intact segment with an ACK that says where the handshake stands, as the kernel would: tcp_egress puts it into the sender's
 * numbers. The segment itself is for nobody any more. It may be forged, and the sender believes the answer's window: that is the largest that a
 * SYN-ACK can have. */
GLOBAL int say_where(struct __sk_buff *skb, const struct segment *segment, const struct pending *pending)
{
	if (!segment || !pending)
		return -1;
	struct tcphdr answer = {
		.source = segment->destination_port,
		.dest = segment->source_port,
		.seq = bpf_htonl(pending->our_isn + 1),
		.ack_seq = bpf_htonl(pending->isn + 1 + pending->guess),
		.ack = 1,
		.window = bpf_htons(65535 >> (pending->agreed & WINDOW_SCALE ? pending->rcv_wscale & 15 : 0)),
	};

	if (cut_to(skb, segment, sizeof(answer)))
		return -1;
	swap_link_addresses(skb);
	if (write_tcp(skb, segment, &answer, &segment->ip.destination, &segment->ip.source))
		return -1;
	return bpf_clone_redirect(skb, skb->ifindex, 0);
}

/* Answers an intact segment with a RST, and makes of it the RST that ends the kernel's socket, which
 * expects `kernel_seq`: the sender may come again from the same port at once. tcp_egress will subtract
 * `delta` from what the answer acknowledges, so it is added here; 0 where neither a flow nor a pending connection is
 * left. */
GLOBAL int refuse(struct __sk_buff *skb, const struct segment *segment, __u32 kernel_seq, __u32 delta)
{
	if (!segment)
		return DROP;
	__u32 end = segment->seq + segment->payload_len + !!(segment->flags & FIN) + !!(segment->flags & SYN);
	struct tcphdr answer = {
		.source = segment->destination_port,
		.dest = segment->source_port,
		.seq = segment->flags & ACK ? bpf_htonl(segment->ack) : 0,
		.ack_seq = bpf_htonl(end + delta),
		.ack = 1,
		.rst = 1,
	};
	struct tcphdr reset = {
		.source = segment->source_port,
		.dest = segment->destination_port,
		.seq = bpf_htonl(kernel_seq),
		.rst = 1,
	};

	if (cut_to(skb, segment, sizeof(answer)))
		return DROP;
	swap_link_addresses(skb);
	if (write_tcp(skb, segment, &answer, &segment->ip.destination, &segment->ip.source))
		return DROP;
	bpf_clone_redirect(skb, skb->ifindex, 0);
	swap_link_addresses(skb);
	if (write_tcp(skb, segment, &reset, &segment->ip.source, &segment->ip.destination))
		return DROP;
	return PASS;
}
