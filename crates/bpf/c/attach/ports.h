/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Ports that are certainly not attached. */
#pragma once
#include "lib/ip.h"

/* One bit for each port that is certainly not attached, set when the program is loaded: most packets of most
 * hosts need no table. For all other ports, tp_ports decides. */
const volatile __u64 other_ports[65536 / 64] = {};

static __always_inline int is_other_port(__be16 port)
{
	__u32 number = bpf_ntohs(port);

	return other_ports[number / 64] >> (number % 64) & 1;
}

/* Certainly not TCP for an attached port. */
static __always_inline int is_elsewhere(struct __sk_buff *skb)
{
	__u8 protocol;
	__u32 at;
	__be16 *ports = behind_ip(skb, &at, &protocol);

	if (!ports)
		return 0;
	if (protocol != IPPROTO_TCP)
		return 1;
	return (void *)(ports + 2) <= (void *)(long)skb->data_end && is_other_port(ports[1]);
}
