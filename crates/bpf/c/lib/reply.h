/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Segments that a program makes of one at hand, which must be intact (csum.h): they get a new sum. */
#pragma once
#include "lib/csum.h"
#include "lib/tcp_opts.h"

/* Truncates the packet to an IP header and `tcp_len` bytes. */
static __always_inline int cut_to(struct __sk_buff *skb, const struct segment *segment, __u32 tcp_len)
{
	if (bpf_skb_change_tail(skb, segment->ip.payload_at + tcp_len, 0))
		return -1;
	if (segment->ip.version == 6) {
		__be16 len = bpf_htons(tcp_len);
		return bpf_skb_store_bytes(skb, segment->ip.at + offsetof(struct ipv6hdr, payload_len), &len,
					   sizeof(len), 0);
	}
	__be16 old = bpf_htons(segment->ip.len);
	__be16 len = bpf_htons(segment->ip.payload_at - segment->ip.at + tcp_len);
	bpf_l3_csum_replace(skb, segment->ip.at + offsetof(struct iphdr, check), old, len, sizeof(len));
	return bpf_skb_store_bytes(skb, segment->ip.at + offsetof(struct iphdr, tot_len), &len, sizeof(len), 0);
}

/* Turns a packet that was cut to the length of a TCP header into this one, whose field `check` is 0. In a
 * CHECKSUM_PARTIAL packet, such as GRO makes, the field then holds the pseudo header's sum alone. */
static __always_inline int write_tcp(struct __sk_buff *skb, const struct segment *segment, struct tcphdr *tcp,
				     const struct address *source, const struct address *destination)
{
	tcp->doff = 5;
	__u32 covered = bpf_csum_diff(0, 0, (__be32 *)tcp, sizeof(*tcp), 0);
	__u32 pseudo = pseudo_header(source, destination, sizeof(*tcp), IPPROTO_TCP);
	if (write_addresses(skb, &segment->ip, source, destination) ||
	    bpf_skb_store_bytes(skb, segment->ip.payload_at, tcp, sizeof(*tcp), BPF_F_INVALIDATE_HASH) ||
	    bpf_l4_csum_replace(skb, tcp_check_at(segment), 0, covered, 0))
		return -1;
	return bpf_l4_csum_replace(skb, tcp_check_at(segment), 0, pseudo, BPF_F_PSEUDO_HDR);
}

/* The packet becomes a segment without options and data, from the segment's receiver to its sender. */
static __always_inline int become_reply(struct __sk_buff *skb, const struct segment *segment,
					struct tcphdr *tcp)
{
	tcp->source = segment->destination_port;
	tcp->dest = segment->source_port;
	if (cut_to(skb, segment, sizeof(*tcp)))
		return -1;
	return write_tcp(skb, segment, tcp, &segment->ip.destination, &segment->ip.source);
}

/* The packet becomes a bare ACK with the segment's options, which the caller writes if it has changed them,
 * and room for `len` bytes behind them, whose sum is `sum`. */
static __always_inline int become_bare_ack(struct __sk_buff *skb, const struct segment *segment,
					   struct tcphdr *tcp, const struct options *options, __u32 len,
					   __u32 sum)
{
	if (cut_to(skb, segment, segment->tcp_header_len + len))
		return -1;
	tcp->fin = tcp->psh = tcp->urg = 0;
	tcp->urg_ptr = 0;
	tcp->check = 0;
	sum = bpf_csum_diff(0, 0, (__be32 *)tcp, sizeof(*tcp), sum);
	if (options)
		sum = bpf_csum_diff(0, 0, (__be32 *)options->bytes, sizeof(options->bytes), sum);
	else if (segment->tcp_header_len != sizeof(*tcp))
		return -1;
	const struct ip *ip = &segment->ip;
	tcp->check = fold((__u64)sum +
			  pseudo_header(&ip->source, &ip->destination, segment->tcp_header_len + len, IPPROTO_TCP));
	return bpf_skb_store_bytes(skb, ip->payload_at, tcp, sizeof(*tcp), 0);
}
