"""Check groups that run only if they are named. No row of verified attentions depends on them."""
