/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The link header. */
#pragma once
#include <linux/if_ether.h>

#include "lib/base.h"

#define LOOPBACK 1 /* its number in every network namespace (LOOPBACK_IFINDEX) */

/* The length of the link header: 14 on Ethernet, 0 on tunnels; set when the program is loaded. */
const volatile __u32 link_header_len = ETH_HLEN;

/* Tagged for a VLAN, whose own interface will receive it. VLAN 0 means none: such a tag has only a priority,
 * and the kernel receives the packet on this interface. */
static __always_inline int is_of_vlan(struct __sk_buff *skb)
{
	return skb->vlan_present && skb->vlan_tci & 0x0fff;
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
