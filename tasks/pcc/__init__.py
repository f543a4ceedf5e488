"""PCC: completion of point clouds, PCN with the protocol of PoinTr."""
