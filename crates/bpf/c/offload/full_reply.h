/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Turns the segment that has come into another one: the link header and the place of the IP header stay, all
 * else is new. */
#pragma once
#include "offload/full_maps.h"
#include "lib/csum.h"
#include "offload/translate.h"

#define PSH 0x08

struct reply {
	struct address source, destination;
	/* Written in one piece: no gaps. */
	struct iphdr ipv4;
	struct tcphdr tcp;    /* without sum and length */
	__u8 options[20];
	__u32 options_len;    /* 0, 12 or 20 */
	__u32 payload_from;   /* offset in a dial's held bytes */
	__u32 payload_len;
};

_Static_assert(__builtin_offsetof(struct reply, options) - __builtin_offsetof(struct reply, ipv4) == 40,
	       "no gaps");

SCRATCH(replies, struct reply);

static __always_inline struct reply *new_reply(const struct address *source, __be16 source_port,
						 const struct address *destination, __be16 destination_port)
{
	struct reply *reply = ONLY_ENTRY(replies);

	if (!reply)
		return 0;
	__builtin_memset(reply, 0, sizeof(*reply));
	reply->source = *source;
	reply->destination = *destination;
	reply->tcp.source = source_port;
	reply->tcp.dest = destination_port;
	return reply;
}

static __always_inline void put_word(__u8 *at, __u32 value)
{
	__be32 word = bpf_htonl(value);
	__builtin_memcpy(at, &word, sizeof(word));
}

/* In the layout that the kernel writes, so that its receivers take their fast path. */
static __always_inline void with_timestamps(struct reply *reply, __u32 value, __u32 echo)
{
	__be32 begin = ONLY_TIMESTAMPS;

	__builtin_memcpy(reply->options, &begin, sizeof(begin));
	put_word(reply->options + 4, value);
	put_word(reply->options + 8, echo);
	reply->options_len = 12;
}

/* The options of a SYN, likewise. */
static __always_inline void with_syn_options(struct reply *reply, __u16 mss, __u8 scale, __u32 value,
					     __u32 echo)
{
	put_word(reply->options, OPTION_MSS << 24 | 4 << 16 | mss);
	put_word(reply->options + 4,
		 OPTION_SACK_PERMITTED << 24 | 2 << 16 | OPTION_TIMESTAMPS << 8 | OPTION_TIMESTAMPS_LEN);
	put_word(reply->options + 8, value);
	put_word(reply->options + 12, echo);
	put_word(reply->options + 16, OPTION_NOP << 24 | OPTION_WINDOW_SCALE << 16 | 3 << 8 | scale);
	reply->options_len = 20;
}

static __always_inline int write_ipv6(struct __sk_buff *skb, const struct segment *segment,
				      const struct reply *reply, __u32 tcp_len)
{
	struct ipv6hdr ip = {};

	ip.version = 6;
	ip.payload_len = bpf_htons(tcp_len);
	ip.nexthdr = IPPROTO_TCP;
	ip.hop_limit = 64;
	__builtin_memcpy(&ip.saddr, &reply->source, sizeof(ip.saddr));
	__builtin_memcpy(&ip.daddr, &reply->destination, sizeof(ip.daddr));
	return bpf_skb_store_bytes(skb, segment->ip.at, &ip, sizeof(ip), BPF_F_INVALIDATE_HASH);
}

static __always_inline void fill_in_ipv4(struct reply *reply, __u32 tcp_len)
{
	struct iphdr ip = {};
	__u64 sum = 0;

	ip.version = 4;
	ip.ihl = 5;
	ip.tot_len = bpf_htons(sizeof(ip) + tcp_len);
	ip.frag_off = bpf_htons(0x4000); /* don't fragment: then no identification is needed (RFC 6864) */
	ip.ttl = 64;
	ip.protocol = IPPROTO_TCP;
	ip.saddr = reply->source.word[3];
	ip.daddr = reply->destination.word[3];
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < sizeof(ip) / sizeof(__u32); i++)
		sum += ((const __u32 *)&ip)[i];
	ip.check = fold(fold_to_word(sum));
	reply->ipv4 = ip;
}

/* The verifier must know the size of what is written: a case for each length. */
static __always_inline int write_headers(struct __sk_buff *skb, __u32 at, const void *from, __u32 before,
					 __u32 options_len)
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

/* The IP header has no options or extension headers, so write_reply() can replace it. */
static __always_inline int is_plain(const struct segment *segment)
{
	return segment->ip.payload_at - segment->ip.at ==
	       (segment->ip.version == 6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
}

static __always_inline int put_payload(struct __sk_buff *skb, __u32 at, const struct reply *reply,
				       const struct dial *dial)
{
	__u32 from = reply->payload_from, last = reply->payload_len - 1;

	if (!dial)
		return -1;
	asm volatile("%0 &= 1023" : "+r"(from)); /* for the verifier: HOLD bytes from below HOLD */
	asm volatile("%0 &= 1023" : "+r"(last));
	return bpf_skb_store_bytes(skb, at, dial->held + from, last + 1, 0);
}

/* `dial`: whose bytes it carries, or NULL. Nonzero: the packet is spoilt. */
GLOBAL int write_reply(struct __sk_buff *skb, const struct segment *segment, struct reply *reply,
		const struct dial *dial)
{
	if (!segment || !reply)
		return -1;
	int is_sum_to_come = is_partial(skb, tcp_check_at(segment));
	__u32 at = segment->ip.payload_at;
	__u32 tcp_len = sizeof(struct tcphdr) + reply->options_len + reply->payload_len;
	/* The device's sum over the packet (CHECKSUM_COMPLETE) becomes wrong: growing the packet drops it. */
	if (!is_sum_to_come && (__s64)bpf_csum_update(skb, 0) >= 0 && bpf_skb_change_tail(skb, skb->len + 1, 0))
		return -1;
	if (bpf_skb_change_tail(skb, at + tcp_len, 0))
		return -1;
	reply->tcp.doff = (sizeof(struct tcphdr) + reply->options_len) / 4;
	reply->tcp.check = 0;
	if (is_sum_to_come)
		reply->tcp.check = ~fold(pseudo_header(&reply->source, &reply->destination, tcp_len, IPPROTO_TCP));
	if (segment->ip.version == 6) {
		if (write_ipv6(skb, segment, reply, tcp_len) ||
		    write_headers(skb, at, &reply->tcp, 0, reply->options_len))
			return -1;
	} else {
		fill_in_ipv4(reply, tcp_len);
		if (write_headers(skb, segment->ip.at, &reply->ipv4, sizeof(struct iphdr), reply->options_len))
			return -1;
	}
	if (reply->payload_len && put_payload(skb, at + sizeof(struct tcphdr) + reply->options_len, reply, dial))
		return -1;
	if (is_sum_to_come)
		return 0;
	__u32 sum = pseudo_header(&reply->source, &reply->destination, tcp_len, IPPROTO_TCP);
	if (sum_bytes(skb, at, tcp_len, &sum))
		return -1;
	__be16 check = fold(sum);
	return bpf_skb_store_bytes(skb, tcp_check_at(segment), &check, sizeof(check), 0);
}

static __always_inline int send_by(struct __sk_buff *skb, __u32 device)
{
	struct face to = { .device = device };

	return send_on(skb, &to);
}

/* Sends the packet to the segment's sender by the neighbour table: a host that forges the sender's address
 * does not get it. */
static __always_inline int send_back(struct __sk_buff *skb)
{
	return send_by(skb, skb->ifindex);
}

/* A reset with the number that the peer expects, so that it believes it. */
static __always_inline int become_reset(struct __sk_buff *skb, const struct segment *segment)
{
	struct reply *reply = new_reply(&segment->ip.destination, segment->destination_port,
					   &segment->ip.source, segment->source_port);

	if (!reply)
		return -1;
	reply->tcp.seq = bpf_htonl(segment->ack);
	reply->tcp.ack_seq = bpf_htonl(end_of(segment));
	reply->tcp.ack = 1;
	reply->tcp.rst = 1;
	return write_reply(skb, segment, reply, 0);
}
