/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* How tcp_ingress ends: passing, dropping, refusing. */
#pragma once
#include "attach/validate.h"
#include "attach/refusals.h"
#include "lib/reply.h"

/* Passes a validated segment on to a listener. skb->priority tells the backstop and the programs of devices
 * above that it is validated: nothing else reads it in incoming packets. */
static __always_inline int go_on(struct __sk_buff *skb)
{
	struct settings *settings = settings_here();

	if (settings)
		asm volatile("*(u32 *)(%0 + %1) = %2"
			     : : "r"(skb), "i"(offsetof(struct __sk_buff, priority)), "r"((__u64)settings->validated) : "memory");
	return PASS;
}

static __always_inline int drop(const struct port *port, enum counter reason)
{
	count(port, reason);
	return DROP;
}

/* Sends a RST to the sender and to the kernel's request socket. `claimed`: what its header says, or NULL. */
static __always_inline int refuse_claim_for(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
					    const struct flow_key *key, const struct pending *pending, enum counter reason,
					    const struct flow *claimed)
{
	__u32 kernel_seq = pending->isn + 1 + pending->guess;

	count(port, reason);
	tell(key, IPPROTO_TCP, reason, claimed);
	bpf_map_delete_elem(&tp_pending, key);
	return refuse(skb, segment, kernel_seq, 0);
}

static __always_inline int refuse_for(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				      const struct flow_key *key, const struct pending *pending, enum counter reason)
{
	return refuse_claim_for(skb, segment, port, key, pending, reason, 0);
}
