/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* How tcp_ingress ends: passing, dropping, refusing. */
#pragma once
#include "attach/validate.h"
#include "attach/refusals.h"
#include "attach/reply.h"

/* A segment from a sender to an attached port, and what is known of its connection. */
struct incoming {
	struct segment segment;
	struct flow_key key;
	const struct port *port;
	struct pending *pending;
	enum socket_state state; /* of the kernel's socket, once it was looked up */
};

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

/* Sends a RST to the sender and to the kernel's request socket. `claimed`: what its header says, or NULL. */
static __always_inline int refuse_claim_for(struct __sk_buff *skb, struct incoming *in, enum counter reason,
					    const struct flow *claimed)
{
	__u32 kernel_seq = in->pending->isn + 1 + in->pending->guess;
	__u32 seq = in->segment.seq + in->pending->flow.delta;

	/* The kernel has the data behind the header: of a repeated segment, too. */
	if (in->pending->stage == NO_SLOT)
		kernel_seq = (__s32)(seq - kernel_seq) < 0 ? end_of(&in->segment) + in->pending->flow.delta : seq;
	count(in->port, reason);
	tell(&in->key, IPPROTO_TCP, reason, claimed);
	bpf_map_delete_elem(&tp_pending, &in->key);
	return refuse(skb, &in->segment, kernel_seq, 0);
}

static __always_inline int refuse_for(struct __sk_buff *skb, struct incoming *in, enum counter reason)
{
	return refuse_claim_for(skb, in, reason, 0);
}
