/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Splits datagrams that travel together (GRO, UDP_SEGMENT). */
#pragma once
#include "lib/udp.h"

/* The most datagrams (UDP_MAX_SEGMENTS), and the longest. */
#define PARTS 128
#define PART_MAX 16384

/* One for each processor (max_entries is set when the table is created); too large for a per-CPU map. Both
 * directions use it: neither is interrupted by the other. What is sent again waits in a queue, and is no
 * longer merged. */
struct gro_split {
	struct datagram from, to; /* the part before, the part at hand */
	__u8 bytes[65536 + PART_MAX];
};

TABLE(tp_gro_splits, ARRAY, 1, __u32, struct gro_split, 0);

static __noinline struct gro_split *load_gro_split(struct __sk_buff *skb, const struct datagram *all)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct gro_split *split = bpf_map_lookup_elem(&tp_gro_splits, &cpu);
	if (!split || all->payload_len == 0)
		return 0;
	__u32 last = all->payload_len - 1;
	asm volatile("%0 &= 65535" : "+r"(last));
	return bpf_skb_load_bytes(skb, all->payload_at, split->bytes, last + 1) ? 0 : split;
}

/* Reduces the packet to the part at `at`, and sends that part again: in (BPF_F_INGRESS) or out (0). */
GLOBAL int send_part(struct __sk_buff *skb, struct gro_split *split, __u32 at, __u32 len, __u32 way)
{
	if (!split)
		return -1;
	struct datagram *to = &split->to;
	__u32 last = len - 1;
	asm volatile("%0 &= 16383" : "+r"(last));
	asm volatile("%0 &= 65535" : "+r"(at));
	to->payload_len = len;
	to->ip.len = ip_len_of(to);
	if (bpf_skb_change_tail(skb, to->payload_at + len, 0))
		return -1;
	if (bpf_skb_store_bytes(skb, to->payload_at, split->bytes + at, last + 1, 0))
		return -1;
	if (write_datagram(skb, &split->from, to, 0))
		return -1;
	split->from = *to;
	return bpf_clone_redirect(skb, skb->ifindex, way);
}

/* Datagrams of one length that the kernel or a device has merged. Each has, or needs, its own header. Each is
 * sent again, alone. The loop is bounded by the number that one call may send (UDP_MAX_SEGMENTS). */
GLOBAL int take_apart(struct __sk_buff *skb, const struct datagram *all, __u32 way)
{
	if (!all)
		return -1;
	struct gro_split *split = load_gro_split(skb, all);
	__u32 part = skb->gso_size, at = 0, len = all->payload_len;

	if (!split || part == 0 || part > PART_MAX || len > part * PARTS)
		return -1;
	split->from = *all;
	split->to = *all;
	for (__u32 i = 0; i < PARTS && at < len; i++) {
		if (send_part(skb, split, at, len - at < part ? len - at : part, way))
			return -1;
		at += part;
	}
	return 0;
}
