/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Reads a TCP segment and shifts its numbers. Checksums are updated incrementally, so a damaged segment stays
 * damaged. */
#pragma once
#include <linux/tcp.h>

#include "lib/ip.h"

#define FIN 0x01
#define SYN 0x02
#define RST 0x04
#define ACK 0x10
#define ECE 0x40
#define CWR 0x80

struct segment {
	struct ip ip; /* whose payload is the TCP header */
	__be16 source_port, destination_port;
	__u32 seq, ack;
	__u32 payload_at; /* offset */
	__u32 tcp_header_len, payload_len;
	__be16 window;
	__u8 flags;
	__u8 reserved; /* bits: RFC 9293, 3.1 */
};

#define RESERVED 0x0e

/* Nonzero: not TCP, or without a complete TCP header. */
static __always_inline int read_segment(struct __sk_buff *skb, struct segment *segment)
{
	struct tcphdr tcp;

	/* Only the first fragment has ports, so fragments can't be validated: ipv6_exthdr.h drops them. */
	if (read_ip(skb, IPPROTO_TCP, &segment->ip) || segment->ip.is_fragment)
		return -1;
	if (LOAD_HEADER(skb, segment->ip.payload_at, &tcp))
		return -1;
	segment->source_port = tcp.source;
	segment->destination_port = tcp.dest;
	segment->seq = bpf_ntohl(tcp.seq);
	segment->ack = bpf_ntohl(tcp.ack_seq);
	segment->window = tcp.window;
	segment->flags = ((__u8 *)&tcp)[13];
	segment->reserved = ((__u8 *)&tcp)[12] & RESERVED;
	segment->tcp_header_len = tcp.doff * 4;
	segment->payload_at = segment->ip.payload_at + segment->tcp_header_len;
	if (segment->tcp_header_len < sizeof(tcp) || segment->payload_at > segment->ip.end)
		return -1;
	segment->payload_len = segment->ip.end - segment->payload_at;
	return 0;
}

/* The number behind its last byte. */
static __always_inline __u32 end_of(const struct segment *segment)
{
	return segment->seq + segment->payload_len + !!(segment->flags & SYN) + !!(segment->flags & FIN);
}

/* The offset of the checksum. */
static __always_inline __u32 tcp_check_at(const struct segment *segment)
{
	return segment->ip.payload_at + offsetof(struct tcphdr, check);
}

/* Overwrites four bytes of the TCP header and updates the checksum. */
static __always_inline void set_word(struct __sk_buff *skb, const struct segment *segment, __u32 at,
				     __u32 from, __u32 to)
{
	__be32 old = bpf_htonl(from), new = bpf_htonl(to);
	bpf_l4_csum_replace(skb, tcp_check_at(segment), old, new, sizeof(new));
	bpf_skb_store_bytes(skb, segment->ip.payload_at + at, &new, sizeof(new), 0);
}

static __always_inline void shift_seq(struct __sk_buff *skb, const struct segment *segment, __s32 delta)
{
	if (delta)
		set_word(skb, segment, offsetof(struct tcphdr, seq), segment->seq, segment->seq + delta);
}

static __always_inline void shift_ack(struct __sk_buff *skb, const struct segment *segment, __s32 delta)
{
	if (delta)
		set_word(skb, segment, offsetof(struct tcphdr, ack_seq), segment->ack, segment->ack - delta);
}

/* The key of the connection of a segment that comes in. */
static __always_inline struct flow_key key_in(const struct segment *segment)
{
	return (struct flow_key){
		.remote = segment->ip.source,
		.local = segment->ip.destination,
		.remote_port = segment->source_port,
		.local_port = segment->destination_port,
	};
}

/* The key of the connection of a segment that goes out. */
static __always_inline struct flow_key key_out(const struct segment *segment)
{
	return (struct flow_key){
		.remote = segment->ip.destination,
		.local = segment->ip.source,
		.remote_port = segment->destination_port,
		.local_port = segment->source_port,
	};
}
