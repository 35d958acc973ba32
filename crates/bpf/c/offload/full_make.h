/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Turns the segment that has come into another one: the link header and the place of the IP header stay, all else is new. */
#pragma once
#include "offload/full_maps.h"
#include "lib/csum.h"
#include "offload/translate.h"

#define PSH 0x08

struct making {
	struct address source, destination;
	/* Written in one piece: no gaps. */
	struct iphdr ipv4;
	struct tcphdr tcp;    /* without sum and length */
	__u8 options[20];
	__u32 options_len;    /* 0, 12 or 20 */
	__u32 payload_from;   /* offset in a dial's held bytes */
	__u32 payload_len;
};

_Static_assert(__builtin_offsetof(struct making, options) - __builtin_offsetof(struct making, ipv4) == 40, "no gaps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct making);
} makings SEC(".maps");

static __always_inline struct making *new_making(const struct address *source, __be16 source_port, const struct address *destination,
						 __be16 destination_port)
{
	__u32 only = 0;
	struct making *making = bpf_map_lookup_elem(&makings, &only);

	if (!making)
		return 0;
	__builtin_memset(making, 0, sizeof(*making));
	making->source = *source;
	making->destination = *destination;
	making->tcp.source = source_port;
	making->tcp.dest = destination_port;
	return making;
}

static __always_inline void put_word(__u8 *at, __u32 value)
{
	__be32 word = bpf_htonl(value);
	__builtin_memcpy(at, &word, sizeof(word));
}

/* In the layout that the kernel writes, so that its receivers take their fast path. */
static __always_inline void with_timestamps(struct making *making, __u32 value, __u32 echo)
{
	__be32 begin = ONLY_TIMESTAMPS;

	__builtin_memcpy(making->options, &begin, sizeof(begin));
	put_word(making->options + 4, value);
	put_word(making->options + 8, echo);
	making->options_len = 12;
}

/* The options of a SYN, likewise. */
static __always_inline void with_syn_options(struct making *making, __u16 mss, __u8 scale, __u32 value, __u32 echo)
{
	put_word(making->options, OPTION_MSS << 24 | 4 << 16 | mss);
	put_word(making->options + 4, OPTION_SACK_PERMITTED << 24 | 2 << 16 | OPTION_TIMESTAMPS << 8 | OPTION_TIMESTAMPS_LEN);
	put_word(making->options + 8, value);
	put_word(making->options + 12, echo);
	put_word(making->options + 16, OPTION_NOP << 24 | OPTION_WINDOW_SCALE << 16 | 3 << 8 | scale);
	making->options_len = 20;
}

static __always_inline int write_ipv6(struct __sk_buff *skb, const struct segment *segment, const struct making *making, __u32 tcp_len)
{
	struct ipv6hdr ip = {};

	ip.version = 6;
	ip.payload_len = bpf_htons(tcp_len);
	ip.nexthdr = IPPROTO_TCP;
	ip.hop_limit = 64;
	__builtin_memcpy(&ip.saddr, &making->source, sizeof(ip.saddr));
	__builtin_memcpy(&ip.daddr, &making->destination, sizeof(ip.daddr));
	return bpf_skb_store_bytes(skb, segment->ip.at, &ip, sizeof(ip), BPF_F_INVALIDATE_HASH);
}

static __always_inline void fill_in_ipv4(struct making *making, __u32 tcp_len)
{
	struct iphdr ip = {};
	__u64 sum = 0;

	ip.version = 4;
	ip.ihl = 5;
	ip.tot_len = bpf_htons(sizeof(ip) + tcp_len);
	ip.frag_off = bpf_htons(0x4000); /* don't fragment: then no identification is needed (RFC 6864) */
	ip.ttl = 64;
	ip.protocol = IPPROTO_TCP;
	ip.saddr = making->source.word[3];
	ip.daddr = making->destination.word[3];
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < sizeof(ip) / sizeof(__u32); i++)
		sum += ((const __u32 *)&ip)[i];
	ip.check = fold(fold_to_word(sum));
	making->ipv4 = ip;
}

static __always_inline __be16 pseudo_sum(const struct making *making, __u8 version, __u32 tcp_len)
{
	if (version == 6)
		return ~fold(pseudo_header(&making->source, &making->destination, version, tcp_len));
	__u64 sum = (__u64)making->source.word[3] + making->destination.word[3] + bpf_htonl(IPPROTO_TCP) + bpf_htonl(tcp_len);
	return ~fold(fold_to_word(sum));
}

/* The verifier must know the size of what is written: a case for each length. */
static __always_inline int write_headers(struct __sk_buff *skb, __u32 at, const void *from, __u32 before, __u32 options_len)
{
	switch (options_len) {
	case 0:
		return bpf_skb_store_bytes(skb, at, from, before + sizeof(struct tcphdr), BPF_F_INVALIDATE_HASH);
	case 12:
		return bpf_skb_store_bytes(skb, at, from, before + sizeof(struct tcphdr) + 12, BPF_F_INVALIDATE_HASH);
	default:
		return bpf_skb_store_bytes(skb, at, from, before + sizeof(struct tcphdr) + 20, BPF_F_INVALIDATE_HASH);
	}
}

/* The IP header has no options or extension headers, so make() can replace it. */
static __always_inline int is_plain(const struct segment *segment)
{
	return segment->ip.payload_at - segment->ip.at == (segment->ip.version == 6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
}

static __always_inline int put_payload(struct __sk_buff *skb, __u32 at, const struct making *making, const struct dial *dial)
{
	__u32 from = making->payload_from, last = making->payload_len - 1;

	if (!dial)
		return -1;
	asm volatile("%0 &= 1023" : "+r"(from)); /* for the verifier: HOLD bytes from below HOLD */
	asm volatile("%0 &= 1023" : "+r"(last));
	return bpf_skb_store_bytes(skb, at, dial->held + from, last + 1, 0);
}

/* `dial`: whose bytes it carries, or NULL. Nonzero: the packet is spoilt. */
GLOBAL int make(struct __sk_buff *skb, const struct segment *segment, struct making *making, const struct dial *dial)
{
	__u32 only = 0;

	if (!segment || !making)
		return -1;
	struct piece *piece = bpf_map_lookup_elem(&pieces, &only);
	if (!piece)
		return -1;
	int is_sum_to_come = is_sum_still_to_come(skb, segment);
	__u32 at = segment->ip.payload_at;
	__u32 tcp_len = sizeof(struct tcphdr) + making->options_len + making->payload_len;
	/* The device's sum over the packet (CHECKSUM_COMPLETE) becomes wrong: growing the packet drops it. */
	if (!is_sum_to_come && (__s64)bpf_csum_update(skb, 0) >= 0 && bpf_skb_change_tail(skb, skb->len + 1, 0))
		return -1;
	if (bpf_skb_change_tail(skb, at + tcp_len, 0))
		return -1;
	making->tcp.doff = (sizeof(struct tcphdr) + making->options_len) / 4;
	making->tcp.check = 0;
	if (is_sum_to_come)
		making->tcp.check = pseudo_sum(making, segment->ip.version, tcp_len);
	if (segment->ip.version == 6) {
		if (write_ipv6(skb, segment, making, tcp_len) || write_headers(skb, at, &making->tcp, 0, making->options_len))
			return -1;
	} else {
		fill_in_ipv4(making, tcp_len);
		if (write_headers(skb, segment->ip.at, &making->ipv4, sizeof(struct iphdr), making->options_len))
			return -1;
	}
	if (making->payload_len && put_payload(skb, at + sizeof(struct tcphdr) + making->options_len, making, dial))
		return -1;
	if (is_sum_to_come)
		return 0;
	struct segment made = *segment;

	made.ip.source = making->source;
	made.ip.destination = making->destination;
	made.ip.end = at + tcp_len;
	__be16 sum = sum_of(skb, &made, piece);
	return bpf_skb_store_bytes(skb, at + offsetof(struct tcphdr, check), &sum, sizeof(sum), 0);
}

static __always_inline int send_by(struct __sk_buff *skb, __u32 device)
{
	struct face to = { .device = device };

	return send_on(skb, &to);
}

/* Sends the packet to the segment's sender by the neighbour table: a host that forges the sender's address does not get it. */
static __always_inline int answer(struct __sk_buff *skb)
{
	return send_by(skb, skb->ifindex);
}

/* A reset with the number that the peer expects, so that it believes it. */
static __always_inline int become_reset(struct __sk_buff *skb, const struct segment *segment)
{
	struct making *making = new_making(&segment->ip.destination, segment->destination_port, &segment->ip.source, segment->source_port);

	if (!making)
		return -1;
	making->tcp.seq = bpf_htonl(segment->ack);
	making->tcp.ack_seq = bpf_htonl(end_of(segment));
	making->tcp.ack = 1;
	making->tcp.rst = 1;
	return make(skb, segment, making, 0);
}
