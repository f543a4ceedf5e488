"""PCC: point cloud completion, PCN with the protocol of PoinTr."""
