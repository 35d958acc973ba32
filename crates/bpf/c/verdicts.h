/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* How tcp_ingress ends: what it lets go on, drops, and refuses. */
#pragma once
#include "judge.h"
#include "replies.h"

/* Lets a segment that was judged go on to a listener. The mark tells the backstop so: nobody else reads skb->priority on the way in. */
static __always_inline int go_on(struct __sk_buff *skb)
{
	__u32 only = 0;
	struct settings *settings = bpf_map_lookup_elem(&tp_settings, &only);

	if (settings)
		skb->priority = settings->judged;
	return PASS;
}

static __always_inline int drop(const struct port *port, enum counter reason)
{
	count(port, reason);
	return DROP;
}

/* The sender is sent a RST, and so is the kernel's request socket. */
static __always_inline int refuse_for(struct __sk_buff *skb, const struct segment *segment, const struct port *port,
				      const struct flow_key *key, const struct embryo *embryo, enum counter reason)
{
	__u32 kernel_seq = embryo->isn + 1 + embryo->guess;

	count(port, reason);
	bpf_map_delete_elem(&tp_embryos, key);
	return refuse(skb, segment, kernel_seq);
}
