/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* For tests only: what tcp_end does when a socket is made, and when it ends. Its name, which only a real socket can hold, aside. */
#include "tcp_door.h"
#include "tcp_end.bpf.c"

SEC("classifier")
int socket_made(struct __sk_buff *skb)
{
	struct door *at = door();
	struct flow_key key;
	struct flow flow = {};

	(void)skb;
	if (!at)
		return 1;
	key = at->key;
	return begin_flow(&key, &flow) ? 1 : 0;
}

SEC("classifier")
int socket_ended(struct __sk_buff *skb)
{
	struct door *at = door();
	struct flow_key key;

	(void)skb;
	if (!at)
		return 1;
	key = at->key;
	retire(&key);
	return 0;
}
