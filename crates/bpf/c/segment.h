/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Reading a TCP segment, and shifting its numbers. */
#pragma once
#include <linux/tcp.h>

#include "ip.h"

#define FIN 0x01
#define SYN 0x02
#define RST 0x04
#define ACK 0x10

/* tcp(7)'s numbers of options. */
#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_SACK 5
#define OPTION_TIMESTAMPS 8
#define OPTION_MD5 19
#define OPTION_AO 29
#define OPTION_MPTCP 30
#define OPTION_FASTOPEN 34
#define OPTION_EXPERIMENT 254

struct segment {
	struct ip ip; /* whose payload is the TCP header */
	__be16 source_port, destination_port;
	__u32 seq, ack;
	__u32 payload_at; /* offset */
	__u32 tcp_header_len, payload_len;
	__u8 flags;
};

/* Nonzero: not TCP, or not whole. */
static __always_inline int read_segment(struct __sk_buff *skb, struct segment *segment)
{
	struct tcphdr tcp;

	/* Fragments: no TCP of today sends them, and only the first has ports. hidden.h keeps them from becoming sessions. */
	if (read_ip(skb, IPPROTO_TCP, &segment->ip) || segment->ip.is_fragment)
		return -1;
	if (bpf_skb_load_bytes(skb, segment->ip.payload_at, &tcp, sizeof(tcp)))
		return -1;
	segment->source_port = tcp.source;
	segment->destination_port = tcp.dest;
	segment->seq = bpf_ntohl(tcp.seq);
	segment->ack = bpf_ntohl(tcp.ack_seq);
	segment->flags = ((__u8 *)&tcp)[13];
	segment->tcp_header_len = tcp.doff * 4;
	segment->payload_at = segment->ip.payload_at + segment->tcp_header_len;
	if (segment->tcp_header_len < sizeof(tcp) || segment->payload_at > segment->ip.end)
		return -1;
	segment->payload_len = segment->ip.end - segment->payload_at;
	return 0;
}

/* Overwrites four bytes of the TCP header; the checksum follows. */
static __always_inline void set_word(struct __sk_buff *skb, const struct segment *segment, __u32 at, __u32 from, __u32 to)
{
	__be32 old = bpf_htonl(from), new = bpf_htonl(to);
	bpf_l4_csum_replace(skb, segment->ip.payload_at + offsetof(struct tcphdr, check), old, new, sizeof(new));
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

#define OPTIONS_AT 4 /* in `bytes`, so that 0 is no option's place */
#define OPTIONS_END (OPTIONS_AT + 40)

/* The options of a TCP header: a copy, zero-padded, and where those that matter stand in it (0: nowhere). In a map,
 * for the verifier to know bounds of it only; a power of two long, so that masked places stay inside. */
struct options {
	__u8 bytes[64];
	__u32 len;
	__u32 sack, timestamps, mptcp, fastopen, signature;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct options);
} options_bench SEC(".maps");

static __always_inline __u8 *option_byte(struct options *options, __u32 at)
{
	asm volatile("%0 &= 63" : "+r"(at)); /* in C, the compiler would know better and leave it out */
	return &options->bytes[at];
}

static __always_inline __u32 option_len(struct options *options, __u32 at)
{
	return *option_byte(options, at + 1);
}

static __always_inline void note_option(struct options *options, __u8 kind, __u32 at)
{
	switch (kind) {
	case OPTION_SACK:
		options->sack = at;
		break;
	case OPTION_TIMESTAMPS:
		options->timestamps = at;
		break;
	case OPTION_MPTCP:
		options->mptcp = at;
		break;
	case OPTION_FASTOPEN:
	case OPTION_EXPERIMENT:
		options->fastopen = at;
		break;
	case OPTION_MD5:
	case OPTION_AO:
		options->signature = at;
		break;
	}
}

static __always_inline void find_options(struct options *options)
{
	__u32 at = OPTIONS_AT;

	for (__u32 i = OPTIONS_AT; i < OPTIONS_END; i++) {
		if (at >= OPTIONS_AT + options->len)
			break;
		__u8 kind = *option_byte(options, at);
		if (kind == OPTION_END)
			break;
		if (kind == OPTION_NOP) {
			at++;
			continue;
		}
		note_option(options, kind, at);
		if (option_len(options, at) < 2)
			break;
		at += option_len(options, at);
	}
}

/* NULL: there are none. What was read before is gone. */
static __noinline struct options *read_options(struct __sk_buff *skb, const struct segment *segment)
{
	__u32 only = 0;
	__u32 len = segment->tcp_header_len - sizeof(struct tcphdr);
	struct options *options = bpf_map_lookup_elem(&options_bench, &only);

	if (!options || len == 0 || len > OPTIONS_END - OPTIONS_AT)
		return 0;
	__builtin_memset(options, 0, sizeof(*options));
	options->len = len;
	/* Word by word (len counts words), so that the verifier knows all bounds. */
	for (__u32 at = 0; at < OPTIONS_END - OPTIONS_AT; at += 4) {
		if (at >= len)
			break;
		if (bpf_skb_load_bytes(skb, segment->ip.payload_at + sizeof(struct tcphdr) + at, options->bytes + OPTIONS_AT + at, 4))
			return 0;
	}
	find_options(options);
	return options;
}

/* The checksum is the caller's. */
static __always_inline int write_options(struct __sk_buff *skb, const struct segment *segment, const struct options *options)
{
	for (__u32 at = 0; at < OPTIONS_END - OPTIONS_AT; at += 4) {
		if (at >= options->len)
			break;
		if (bpf_skb_store_bytes(skb, segment->ip.payload_at + sizeof(struct tcphdr) + at, options->bytes + OPTIONS_AT + at, 4, 0))
			return -1;
	}
	return 0;
}
