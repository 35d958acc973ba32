/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* For tests only: the actions of tcp_end when a socket is created and when it ends, except storing the name,
 * which needs a real socket. */
#include "test/fake_kernel.h"
#include "attach/tcp_end.bpf.c"

SEC("classifier")
int socket_made(struct __sk_buff *skb)
{
	struct fake_kernel *at = fake_kernel();
	struct flow_key key;
	struct flow flow = {};
	struct endpoint destination = {};

	(void)skb;
	if (!at)
		return 1;
	key = at->key;
	return begin_flow(&key, &flow, &destination) ? 1 : 0;
}

SEC("classifier")
int socket_ended(struct __sk_buff *skb)
{
	struct fake_kernel *at = fake_kernel();
	struct flow_key key;

	(void)skb;
	if (!at)
		return 1;
	key = at->key;
	retire(&key, 1);
	return 0;
}
